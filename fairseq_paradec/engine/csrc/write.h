// Greedy writing: a decoder's tokens one after the other, without a return to the caller.
#pragma once

#include "choose.h"

// What rows write; tables are rows x most.
struct Writing {
    const int32_t* counts;  // rows, at most so many tokens; 0: none
    int most;
    float least;            // a row ends once the sum of its scores is below this
    int normalised;         // whether scores are log-probabilities
    const uint8_t* limits;  // of each position; null: none
    const int64_t* forced;  // the only token allowed; null: none
    int64_t* tokens;
    float* scores;
    int32_t* written;       // rows
};

// Read a chunk, in which row b has counts[b] tokens from the first on, at least one, and write. Every written token
// but a row's last is read too. False: a token is outside the vocabulary, or has no slot.
inline bool write(const Stack& stack, const Linear& projection, const Rules& rules, const Writing& to,
                  const Chunk& first, const Store& own, const Store* source, Workspace& work) {
    const size_t stride = padded(stack.dim);
    std::vector<float> states((size_t)first.rows * first.width * stride);
    std::vector<int32_t> live, lengths(first.rows);
    std::vector<float> sums(first.rows, 0.0f);
    if (!pass(stack, first, own, source, states.data(), work)) return false;
    for (int b = 0; b < first.rows; ++b) {
        const int count = first.counts == nullptr ? first.width : first.counts[b];
        lengths[b] = first.starts[b] + count;
        to.written[b] = 0;
        if (to.counts[b] <= 0) continue;
        const float* last = states.data() + ((size_t)b * first.width + count - 1) * stride;
        std::memmove(states.data() + live.size() * stride, last, stride * sizeof(float));
        live.push_back(b);
    }
    std::vector<int64_t> tokens(live.size()), forced(live.size());
    std::vector<float> scores(live.size());
    std::vector<uint8_t> limits(live.size());
    std::vector<int32_t> starts(live.size()), own_rows(live.size()), source_rows(live.size());
    for (int step = 0; !live.empty(); ++step) {
        for (size_t i = 0; i < live.size(); ++i) {
            const size_t at = (size_t)live[i] * to.most + step;
            if (to.limits != nullptr) limits[i] = to.limits[at];
            if (to.forced != nullptr) forced[i] = to.forced[at];
        }
        Choices choices{};
        choices.limits = to.limits == nullptr ? nullptr : limits.data();
        choices.forced = to.forced == nullptr ? nullptr : forced.data();
        choices.best = tokens.data(), choices.score = scores.data();
        choices.normalised = to.normalised, choices.count = 1;
        choose(projection, rules, choices, states.data(), (int)stride, (int)live.size(), work);
        size_t kept = 0;
        for (size_t i = 0; i < live.size(); ++i) {
            const int b = live[i];
            const size_t at = (size_t)b * to.most + step;
            to.tokens[at] = tokens[i];
            to.scores[at] = scores[i];
            sums[b] += scores[i];
            to.written[b] = step + 1;
            // A sum that is NaN ends the row: the caller refuses it.
            if (step + 1 == to.counts[b] || tokens[i] == rules.end || !(sums[b] >= to.least)) continue;
            live[kept] = b;
            tokens[kept] = tokens[i];
            starts[kept] = lengths[b]++;
            own_rows[kept] = first.own_rows[b];
            source_rows[kept++] = first.source_rows[b];
        }
        live.resize(kept);
        if (kept == 0) break;
        Chunk next{};
        next.rows = (int)kept, next.width = 1, next.tokens = tokens.data(), next.starts = starts.data();
        next.own_rows = own_rows.data(), next.source_rows = source_rows.data();
        if (!pass(stack, next, own, source, states.data(), work)) return false;
    }
    return true;
}
