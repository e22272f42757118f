// A step of a beam search by several words a step (Zhang et al. 2020, Algorithm 1). See multiword_beam.py,
// whose `extend` is the same on tensors.
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
};

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

// `ended` has z * beam candidates of each sentence, `alive` `kept`.
inline void extend(const Step& step, const Extended& ended, const Extended& alive) {
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
