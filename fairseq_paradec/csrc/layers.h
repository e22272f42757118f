// Parts of a Transformer's layers besides products: norms and attention.
#pragma once

#include "linear.h"

struct Norm {
    Memory<float> weight, bias;  // padded with zeros; null: none
    float epsilon = 0;
};

// y = norm(x), rows of `size` numbers, padded; y may be x.
inline void normalise(const Norm& norm, const float* x, int rows, int size, float* y) {
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

// The slots of a cache that a query sees: the first `until`, without those where a mask is 0.
struct Seen {
    int until;
    const uint8_t* mask;  // slots, or null
};

// Attention of one head's query; keys are size x slots, values slots x size.
inline void attend(const float* query, const float* keys, const float* values, int slots, int size,
                   float scale, const Seen& seen, float* scores, float* out) {
    const int last = std::min(slots, padded(seen.until));
    vfloat best = splat(-INFINITY);
    for (int t = 0; t < last; t += LANES) {
        vfloat score{};
        const float* key = keys + t;
        for (int d = 0; d < size; ++d, key += slots) score += query[d] * load(key);
        score *= scale;
        if (t + LANES > seen.until || seen.mask != nullptr) {
            for (int i = 0; i < LANES; ++i) {
                const int slot = t + i;
                const bool sees = slot < seen.until && (seen.mask == nullptr || seen.mask[slot] != 0);
                if (!sees) score[i] = -INFINITY;
            }
        }
        store(scores + t, score);
        best = larger(best, score);
    }
    const float peak = largest(best);
    vfloat total{};
    for (int t = 0; t < last; t += LANES) {
        const vfloat score = load(scores + t);
        vfloat weight = exp(score - peak);
        weight = score == splat(-INFINITY) ? vfloat{} : weight;
        store(scores + t, weight);
        total += weight;
    }
    const float inverse = 1 / sum(total);
    for (int d = 0; d < size; d += LANES) {
        vfloat mixed{};
        for (int t = 0; t < seen.until; ++t) mixed += scores[t] * load(values + (size_t)t * size + d);
        store(out + d, mixed * inverse);
    }
}
