// Parts of a Transformer's layers besides products: norms and attention.
#pragma once

#include <type_traits>

#include "linear.h"

struct Norm {
    Memory<float> weight, bias;  // padded with zeros; no weight: no norm; no bias: of mean squares alone
    float epsilon = 0;
};

// y = x / root of the mean square, weighted; rows as those of `normalise`.
inline void normalise_squares(const Norm& norm, const float* x, int rows, int size, float* y) {
    const int stride = padded(size);
    for (int r = 0; r < rows; ++r, x += stride, y += stride) {
        vfloat squares{};
        for (int i = 0; i < stride; i += LANES) squares += load(x + i) * load(x + i);
        const float scale = 1 / std::sqrt(sum(squares) / size + norm.epsilon);
        for (int i = 0; i < stride; i += LANES) store(y + i, load(x + i) * scale * load(norm.weight.get() + i));
    }
}

// y = norm(x), rows of `size` numbers, padded; y may be x.
inline void normalise(const Norm& norm, const float* x, int rows, int size, float* y) {
    if (!norm.bias) return normalise_squares(norm, x, rows, size, y);
    const int stride = padded(size), pad = stride - size;
    for (int r = 0; r < rows; ++r, x += stride, y += stride) {
        vfloat total{};
        for (int i = 0; i < stride; i += LANES) total += load(x + i);
        const float mean = sum(total) / size;
        vfloat squares{};
        for (int i = 0; i < stride; i += LANES) {
            const vfloat d = load(x + i) - mean;
            squares += d * d;
        }
        const float variance = std::max(0.0f, (sum(squares) - pad * mean * mean) / size);
        const float scale = 1 / std::sqrt(variance + norm.epsilon);
        for (int i = 0; i < stride; i += LANES) {
            const vfloat weight = load(norm.weight.get() + i), bias = load(norm.bias.get() + i);
            store(y + i, (load(x + i) - mean) * scale * weight + bias);
        }
    }
}

// The slots of a cache that a query sees: the first `until`, without those where a mask is 0, and those
// of a path behind them, in its order.
struct Seen {
    int until = 0;
    const uint8_t* mask = nullptr;  // slots, or null; without a path
    const int32_t* path = nullptr;
    int extra = 0;  // of the path
    int count() const { return until + extra; }
    int at(int i) const { return i < until ? i : path[i - until]; }
};

// out = the sum of weights[i] * values[slot i], each of VECTORS vectors.
template <int VECTORS>
inline void mix(const float* values, int size, const Seen& seen, const float* weights, float inverse, float* out) {
    vfloat mixed[VECTORS] = {};
    const auto add = [&](int i, int slot) {
        const float* value = values + (size_t)slot * size;
        for (int d = 0; d < VECTORS; ++d) mixed[d] += weights[i] * load(value + d * LANES);
    };
    for (int i = 0; i < seen.until; ++i) add(i, i);
    for (int i = 0; i < seen.extra; ++i) add(seen.until + i, seen.path[i]);
    for (int d = 0; d < VECTORS; ++d) store(out + d * LANES, mixed[d] * inverse);
}

// Add VECTORS vectors' products of a query with `count` keys to the sums of each.
template <int VECTORS>
inline void match(const float* query, const float* keys, int size, const Seen& seen, int first, int count, vfloat* sums) {
    vfloat asked[VECTORS];
    for (int d = 0; d < VECTORS; ++d) asked[d] = load(query + d * LANES);
    for (int i = 0; i < count; ++i) {
        const float* key = keys + (size_t)seen.at(first + i) * size;
        for (int d = 0; d < VECTORS; ++d) sums[i] += asked[d] * load(key + d * LANES);
    }
}

// Biases by the distance of a key from its query, of one head and query. The i-th key that a query sees is at
// position i, wherever it lies.
struct Near {
    const float* same;  // of distance 0; those of -(reach + LANES) to reach + LANES - 1 lie around it
    int reach, position;
    vfloat at(int key) const { return load(same + std::clamp(key - position, -(reach + LANES), reach)); }
};
struct Anywhere {};  // there are no biases

// Attention of one head's query; keys and values are slots x size. The sums have the same terms in the
// same order wherever the slots lie, so a path's are those of a row that holds it alone.
template <class Bias>
inline void attend(const float* query, const float* keys, const float* values, int size, float scale,
                   const Seen& seen, const Bias& bias, float* scores, float* out) {
    const int count = seen.count();
    vfloat best = splat(-INFINITY);
    for (int t = 0; t < count; t += LANES) {
        vfloat parts[LANES] = {};
        const int here = std::min(LANES, count - t);
        int d = 0;
        for (; d + 4 * LANES <= size; d += 4 * LANES) match<4>(query + d, keys + d, size, seen, t, here, parts);
        for (; d < size; d += LANES) match<1>(query + d, keys + d, size, seen, t, here, parts);
        vfloat score = sums_of(parts) * scale;
        if constexpr (std::is_same_v<Bias, Near>) score += bias.at(t);
        for (int i = here; i < LANES; ++i) score[i] = -INFINITY;
        for (int i = 0; seen.mask != nullptr && i < here; ++i) {
            if (seen.mask[t + i] == 0) score[i] = -INFINITY;
        }
        store(scores + t, score);
        best = larger(best, score);
    }
    const float peak = largest(best);
    vfloat total{};
    for (int t = 0; t < count; t += LANES) {
        const vfloat score = load(scores + t);
        vfloat weight = exp(score - peak);
        weight = score == splat(-INFINITY) ? vfloat{} : weight;
        store(scores + t, weight);
        total += weight;
    }
    const float inverse = 1 / sum(total);
    int d = 0;
    for (; d + 4 * LANES <= size; d += 4 * LANES) mix<4>(values + d, size, seen, scores, inverse, out + d);
    for (; d < size; d += LANES) mix<1>(values + d, size, seen, scores, inverse, out + d);
}
