// The vocabulary: scores of all tokens, fairseq's limits on them, and what is chosen.
#pragma once

#include "stack.h"

// fairseq's limits, as TokenRules has them.
struct Rules {
    int32_t pad, unknown, end;
    float unknown_penalty, temperature;
    const int64_t* suppressed;
    int32_t num_suppressed;
};

// Of a position: bits of Limits.
enum : uint8_t { END_FORBIDDEN = 1, END_ONLY = 2, SUPPRESSES = 4 };

// N of each; what is null is not wanted, or not given.
struct Choices {
    const uint8_t* limits;     // which limits hold; null: none
    const int64_t* forced;     // the only token allowed, -1: any
    const int64_t* drafted;    // -1: none
    int64_t* best;
    float* score;              // log-probability
    int64_t* second;
    float* second_score;
    float* drafted_score;
    int32_t* drafted_rank;     // how many tokens score strictly higher
};

struct Best {
    float score;
    int64_t token;
};

// The largest of `count` (whole vectors), the first of equals; a NaN is never it.
inline Best find_best(const float* scores, int count) {
    vfloat top = splat(-INFINITY);
    for (int i = 0; i < count; i += LANES) top = larger(load(scores + i), top);
    const float best = largest(top);
    for (int i = 0; i < count; i += LANES) {
        const vint same = load(scores + i) == splat(best);
        for (int j = 0; j < LANES; ++j) {
            if (same[j]) return {best, i + j};
        }
    }
    return {best, 0};
}

inline void choose_one(const Rules& rules, const Choices& to, int i, float* y, int count, int width) {
    for (int v = count; v < width; ++v) y[v] = -INFINITY;
    if (rules.temperature != 1) {
        for (int v = 0; v < count; v += LANES) store(y + v, load(y + v) / rules.temperature);
    }
    vfloat top = load(y), total{};
    for (int v = LANES; v < width; v += LANES) top = larger(top, load(y + v));
    const float peak = largest(top);
    for (int v = 0; v < width; v += LANES) total += exp(load(y + v) - peak);
    const float normaliser = peak + std::log(sum(total));  // NaN if any score is
    const auto forbid = [&](int64_t token) {
        if (token >= 0 && token < count) y[token] = -INFINITY;
    };
    const auto only = [&](int64_t token) {
        const float kept = token < count ? y[token] : -INFINITY;
        std::fill(y, y + width, -INFINITY);
        if (token < count) y[token] = kept;
    };
    const uint8_t limits = to.limits == nullptr ? 0 : to.limits[i];
    forbid(rules.pad);
    if (rules.unknown < count) y[rules.unknown] -= rules.unknown_penalty;
    if (limits & END_FORBIDDEN) forbid(rules.end);
    if (to.forced != nullptr && to.forced[i] >= 0) only(to.forced[i]);
    if (limits & END_ONLY) only(rules.end);
    if (limits & SUPPRESSES) {
        for (int s = 0; s < rules.num_suppressed; ++s) forbid(rules.suppressed[s]);
    }
    const Best best = find_best(y, width);
    to.best[i] = best.token;
    to.score[i] = best.score - normaliser;
    if (to.drafted != nullptr) {
        const int64_t token = to.drafted[i];
        const float score = token >= 0 && token < count ? y[token] : -INFINITY;
        vint higher{};
        for (int v = 0; v < width; v += LANES) higher -= load(y + v) > splat(score);
        to.drafted_score[i] = score - normaliser;
        to.drafted_rank[i] = 0;
        for (int j = 0; j < LANES; ++j) to.drafted_rank[i] += higher[j];
    }
    if (to.second != nullptr) {
        y[best.token] = -INFINITY;
        const Best next = find_best(y, width);
        to.second[i] = next.token;
        to.second_score[i] = next.score - normaliser;
    }
}

inline void choose(const Linear& projection, const Rules& rules, const Choices& to, const float* hidden,
                   int stride, int rows, Workspace& work) {
    // A few rows at a time: their scores are to stay in the cache.
    const int width = projection.width(), most = 4 * BLOCK;
    for (int first = 0; first < rows; first += most) {
        const int count = std::min(most, rows - first);
        float* scores = grown(work.logits, (size_t)count * width);
        multiply(projection, hidden + (size_t)first * stride, stride, count, {scores, width}, work);
        const long numbers = (long)count * width;
#pragma omp parallel for schedule(static) if (numbers > SERIAL / 4)
        for (int i = 0; i < count; ++i) {
            choose_one(rules, to, first + i, scores + (size_t)i * width, projection.outputs, width);
        }
    }
}
