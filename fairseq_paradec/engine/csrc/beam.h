// A step of a beam search by several words a step (Zhang et al. 2020, Algorithm 1), or by pairs of words (Imamura
// and Sumita 2020, Algorithm 1). See multiword_beam.py and double_token_beam.py, whose `extend` is the same on tensors.
#pragma once

#include <vector>

#include "simd.h"

// S sentences with W hypotheses each; z words a step, each with K candidates.
struct Step {
    int sentences, width, words, candidates, beam, kept;  // kept: hypotheses of the next beam
    int64_t end;
    const float* scores;        // S x W
    const int64_t* tokens;      // S x W x z x K
    const float* token_scores;  // S x W x z x K
    const float* end_scores;    // S x W x z
    int pairs;                  // whether words are pairs (z = 2), whose second word ends with the first
};

// Of a sentence, how many hypotheses a step may end, and how many go on.
struct Counts {
    int ended, alive;
};

inline Counts counts_of(const Step& step) {
    const int W = step.width, K = step.candidates, B = step.beam;
    if (step.pairs) {
        const int found = std::min(3 * B, std::min(2 * B, W * K) * K);
        return {found, std::min(B, found)};
    }
    int each = 1;
    for (int i = 0; i < step.words; ++i) each = std::min(B, each * K);
    return {step.words * B, std::min(B, W * each)};
}

// Extended hypotheses, S x C; a score of -inf: none.
struct Extended {
    float* scores;
    int64_t* parents;
    int64_t* words;      // S x C x z
    float* word_scores;  // S x C x z
};

// Find the places of the largest values, the largest first; of equal ones the first, and NaN before all.
inline void find_largest(const std::vector<float>& values, size_t count, std::vector<int>& places) {
    const auto less = [&](int a, int b) {
        return values[b] != values[b] ? values[a] == values[a] : values[a] < values[b];
    };
    places.clear();
    for (int i = 0; i < (int)values.size(); ++i) {
        if (places.size() == count && !less(places.back(), i)) continue;
        if (places.size() == count) places.pop_back();
        auto at = places.end();
        while (at != places.begin() && less(at[-1], i)) --at;
        places.insert(at, i);
    }
}

// Branches of a sentence's hypotheses within a step: totals, and the words so far.
struct Branches {
    std::vector<float> totals, scores;
    std::vector<int64_t> words;
    void resize(size_t count, int z) {
        totals.resize(count), scores.resize(count * z), words.resize(count * z);
    }
    void take(size_t to, const Branches& from, size_t of, int z) {
        std::copy_n(from.words.begin() + of * z, z, words.begin() + to * z);
        std::copy_n(from.scores.begin() + of * z, z, scores.begin() + to * z);
    }
};

inline void put(const Extended& to, size_t at, float score, int64_t parent, const Branches& from, size_t of, int z) {
    to.scores[at] = score;
    to.parents[at] = parent;
    std::copy_n(from.words.begin() + of * z, z, to.words + at * z);
    std::copy_n(from.scores.begin() + of * z, z, to.word_scores + at * z);
}

// Extend hypotheses by a pair of words; see `extend`.
inline void extend_by_pairs(const Step& step, const Extended& ended, const Extended& alive) {
    const int W = step.width, K = step.candidates, B = step.beam;
    const auto [found, kept] = counts_of(step);
    std::vector<float> lefts, totals;
    std::vector<int> left_places, places;
    for (int s = 0; s < step.sentences; ++s) {
        const auto slot = [&](int w, int i) { return (((size_t)s * W + w) * 2 + i) * K; };
        // 1. The best 2B left words over the whole beam.
        lefts.clear();
        for (int w = 0; w < W; ++w) {
            for (int k = 0; k < K; ++k) lefts.push_back(step.scores[(size_t)s * W + w] + step.token_scores[slot(w, 0) + k]);
        }
        find_largest(lefts, 2 * B, left_places);
        // 2. The best 3B pairs with them. After </s> the right word is </s> too.
        totals.clear();
        for (int left : left_places) {
            const int w = left / K;
            const bool ends = step.tokens[slot(w, 0) + left % K] == step.end;
            for (int k = 0; k < K; ++k) {
                const float end_score = k == 0 ? step.end_scores[((size_t)s * W + w) * 2 + 1] : -INFINITY;
                totals.push_back(lefts[left] + (ends ? end_score : step.token_scores[slot(w, 1) + k]));
            }
        }
        find_largest(totals, found, places);
        // 3. Of the best B those that end are finished; the best B of the others are the next beam.
        const auto write = [&](const Extended& to, size_t at, int place, float total) {
            const int left = left_places[place / K], w = left / K;
            const size_t of_left = slot(w, 0) + left % K, of_right = slot(w, 1) + place % K;
            const bool both = step.tokens[of_left] == step.end;
            const float right = both ? step.end_scores[((size_t)s * W + w) * 2 + 1] : step.token_scores[of_right];
            to.scores[at] = total, to.parents[at] = w;
            to.words[2 * at] = step.tokens[of_left], to.words[2 * at + 1] = both ? step.end : step.tokens[of_right];
            to.word_scores[2 * at] = step.token_scores[of_left] + (both ? right : 0), to.word_scores[2 * at + 1] = right;
        };
        int alive_count = 0;
        for (int n = 0; n < found; ++n) {
            const size_t at = (size_t)s * found + n;
            write(ended, at, places[n], totals[places[n]]);
            const bool ends = ended.words[2 * at] == step.end || ended.words[2 * at + 1] == step.end;
            if (!ends && alive_count < kept) write(alive, (size_t)s * kept + alive_count++, places[n], totals[places[n]]);
            if (!ends || n >= B) ended.scores[at] = -INFINITY;
        }
        while (alive_count < kept) write(alive, (size_t)s * kept + alive_count++, 0, -INFINITY);
    }
}

// `ended` and `alive` have as many candidates of each sentence as `counts_of` says.
inline void extend(const Step& step, const Extended& ended, const Extended& alive) {
    if (step.pairs) return extend_by_pairs(step, ended, alive);
    const int W = step.width, z = step.words, K = step.candidates, B = step.beam;
    Branches now, next;
    std::vector<float> line, pool;
    std::vector<int> places;
    for (int s = 0; s < step.sentences; ++s) {
        int each = 1;  // branches of a hypothesis
        now.resize(W, z);
        std::copy_n(step.scores + (size_t)s * W, W, now.totals.begin());
        std::fill(now.words.begin(), now.words.end(), 0);
        std::fill(now.scores.begin(), now.scores.end(), 0.0f);
        for (int i = 0; i < z; ++i) {
            const int few = std::min(B, each * K);
            next.resize((size_t)W * few, z);
            pool.clear();
            for (int w = 0; w < W; ++w) {
                const size_t slot = ((size_t)s * W + w) * z + i;
                const int64_t* tokens = step.tokens + slot * K;
                const float* scores = step.token_scores + slot * K;
                line.clear();
                for (int c = 0; c < each; ++c) {
                    const float total = now.totals[w * each + c];
                    pool.push_back(total + step.end_scores[slot]);
                    for (int k = 0; k < K; ++k) line.push_back(tokens[k] == step.end ? -INFINITY : total + scores[k]);
                }
                find_largest(line, few, places);
                for (int n = 0; n < few; ++n) {
                    const size_t at = (size_t)w * few + n;
                    next.totals[at] = line[places[n]];
                    next.take(at, now, (size_t)w * each + places[n] / K, z);
                    next.words[at * z + i] = tokens[places[n] % K];
                    next.scores[at * z + i] = scores[places[n] % K];
                }
            }
            // A hypothesis that ends here, among the best of this length, is finished.
            pool.insert(pool.end(), next.totals.begin(), next.totals.end());
            find_largest(pool, std::min((size_t)B, pool.size()), places);
            for (int n = 0; n < B; ++n) {
                const size_t at = ((size_t)s * z + i) * B + n;
                const bool ends = n < (int)places.size() && places[n] < W * each;
                const int of = ends ? places[n] : 0, parent = of / each;
                put(ended, at, ends ? pool[of] : -INFINITY, parent, now, of, z);
                ended.words[at * z + i] = step.end;
                ended.word_scores[at * z + i] = step.end_scores[((size_t)s * W + parent) * z + i];
            }
            std::swap(now, next);
            each = few;
        }
        find_largest(now.totals, step.kept, places);
        for (int n = 0; n < step.kept; ++n) {
            put(alive, (size_t)s * step.kept + n, now.totals[places[n]], places[n] / each, now, places[n], z);
        }
    }
}
