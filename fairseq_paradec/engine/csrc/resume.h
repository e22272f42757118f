// Calls that return after a while and go on in the next one, so that Ctrl-C and clients that leave are noticed.
#pragma once

#include <chrono>

#include "choose.h"

// Why a call has returned.
enum Returned : int { ALL_ENDED, NO_MEMORY, NO_WORD, NO_ROOM, ONE_ENDED, TIME_IS_UP, DRAFTER_IS_NAN };

class Deadline {
   public:
    explicit Deadline(int milliseconds) : end(Clock::now() + std::chrono::milliseconds(milliseconds)) {}
    bool is_over() const { return Clock::now() >= end; }

   private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point end;
};

// The tokens of a pass that is read in parts, in their order: none sees one of a later part.
struct Reading {
    std::vector<Token> tokens;
    size_t done = 0;
    int together = 1;  // so many tokens in a row see each other
    bool is_done() const { return done == tokens.size(); }
    void clear() { tokens.clear(), done = 0; }
};

// Read the next tokens, and choose behind them; return their states. A token's scores do not depend on the parts.
inline const float* read_part(const Stack& stack, const Linear& projection, const Rules& rules, const Choices& choices,
                              const Store& own, const Store* source, Reading& reading, Workspace& work) {
    // A wide beam chooses many words behind each token.
    int most = std::clamp((1 << 16) / std::max(1, choices.count), 16, 256);
    most = std::max(1, most / reading.together) * reading.together;
    const size_t count = std::min((size_t)most, reading.tokens.size() - reading.done), stride = padded(stack.dim);
    const auto first = reading.tokens.begin() + reading.done;
    work.tokens.assign(first, first + count);
    float* x = grown(work.states, count * stride);
    embed(stack, work.tokens, x);
    run(stack, own, source, x, work);
    choose(projection, rules, behind(choices, reading.done), x, (int)stride, (int)count, work);
    reading.done += count;
    return x;
}
