// Greedy writing: a decoder's tokens one after the other, without a return to the caller.
#pragma once

#include "resume.h"

// What rows write; tables are rows x most.
struct Writing {
    const int32_t* counts;  // rows, at most so many tokens; 0: none
    int most;
    float least;            // a row ends once the sum of its scores is below this
    int normalised;         // whether scores are log-probabilities
    const uint8_t* limits;  // of each position; null: none
    const int64_t* forced;  // the only token allowed; null: none
    const Before* before;   // rows, what a row writes behind; read if the rules read texts
    int64_t* tokens;
    float* scores;
    int32_t* written;       // rows
};

// Reads a chunk, in which row b has counts[b] tokens from the first on, at least one, and writes. Every written token
// but a row's last is read too. What the chunk and the tables point to is read until the end.
class Writer {
   public:
    void begin(const Writing& how, const Chunk& chunk) {
        to = how, first = chunk, taken = -1;
        live.clear(), lengths.clear(), sums.assign(first.rows, 0.0f);
        for (int b = 0; b < first.rows; ++b) {
            lengths.push_back(first.starts[b] + count_of(b));
            to.written[b] = 0;
            if (to.counts[b] > 0) live.push_back(b);
        }
        tokens.resize(live.size()), scores.resize(live.size()), forced.resize(live.size()), limits.resize(live.size());
        starts.resize(live.size()), own_rows.resize(live.size()), source_rows.resize(live.size());
    }

    bool is_done() const { return taken >= 0 && live.empty(); }

    // Run the next pass, and write behind it. False: a token is outside the vocabulary, or has no slot.
    bool step(const Stack& stack, const Linear& projection, const Rules& rules, const Store& own, const Store* source,
              Workspace& work) {
        const size_t stride = padded(stack.dim);
        Chunk chunk = first;
        if (taken >= 0) {
            chunk = {};
            chunk.rows = (int)live.size(), chunk.width = 1, chunk.tokens = tokens.data(), chunk.starts = starts.data();
            chunk.own_rows = own_rows.data(), chunk.source_rows = source_rows.data();
        }
        states.resize(std::max(states.size(), (size_t)chunk.rows * chunk.width * stride));
        if (!pass(stack, chunk, own, source, states.data(), work)) return false;
        for (size_t i = 0; taken < 0 && i < live.size(); ++i) {
            const float* last = states.data() + ((size_t)live[i] * first.width + count_of(live[i]) - 1) * stride;
            std::memmove(states.data() + i * stride, last, stride * sizeof(float));
        }
        if (++taken, live.empty()) return true;
        for (size_t i = 0; i < live.size(); ++i) {
            const size_t at = (size_t)live[i] * to.most + taken;
            if (to.limits != nullptr) limits[i] = to.limits[at];
            if (to.forced != nullptr) forced[i] = to.forced[at];
        }
        before.clear();
        for (size_t i = 0; rules.read_texts() && i < live.size(); ++i) {
            before.push_back(to.before[live[i]]);
            before.back().more = to.tokens + (size_t)live[i] * to.most;
            before.back().more_length = taken;
        }
        Choices choices{};
        choices.limits = to.limits == nullptr ? nullptr : limits.data();
        choices.forced = to.forced == nullptr ? nullptr : forced.data();
        choices.before = before.data();
        choices.best = tokens.data(), choices.score = scores.data();
        choices.normalised = to.normalised, choices.count = 1;
        choose(projection, rules, choices, states.data(), (int)stride, (int)live.size(), work);
        size_t kept = 0;
        for (size_t i = 0; i < live.size(); ++i) {
            const int b = live[i];
            const size_t at = (size_t)b * to.most + taken;
            to.tokens[at] = tokens[i];
            to.scores[at] = scores[i];
            sums[b] += scores[i];
            to.written[b] = taken + 1;
            // A sum that is NaN ends the row: the caller refuses it.
            if (taken + 1 == to.counts[b] || tokens[i] == rules.end || !(sums[b] >= to.least)) continue;
            live[kept] = b;
            tokens[kept] = tokens[i];
            starts[kept] = lengths[b]++;
            own_rows[kept] = first.own_rows[b];
            source_rows[kept++] = first.source_rows[b];
        }
        live.resize(kept);
        return true;
    }

   private:
    Writing to{};
    Chunk first{};
    int taken = 0;  // passes behind the first; -1: not even that
    std::vector<float> states, sums, scores;
    std::vector<int32_t> live, lengths, starts, own_rows, source_rows;
    std::vector<int64_t> tokens, forced;
    std::vector<uint8_t> limits;
    std::vector<Before> before;

    int count_of(int b) const { return first.counts == nullptr ? first.width : first.counts[b]; }
};

// Write all of it.
inline bool write(const Stack& stack, const Linear& projection, const Rules& rules, const Writing& to,
                  const Chunk& first, const Store& own, const Store* source, Workspace& work) {
    Writer writer;
    writer.begin(to, first);
    while (!writer.is_done()) {
        if (!writer.step(stack, projection, rules, own, source, work)) return false;
    }
    return true;
}
