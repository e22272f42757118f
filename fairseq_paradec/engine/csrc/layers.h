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

// The slots of a cache that a query sees: the first `until`, without those where a mask is 0, and the
// ascending ones of a path behind them.
struct Seen {
    int until = 0;
    const uint8_t* mask = nullptr;  // slots, or null; without a path
    const int32_t* path = nullptr;
    int extra = 0;  // of the path
    int end() const { return extra == 0 ? until : path[extra - 1] + 1; }
};

// Attention of one head's query; keys are size x slots, values slots x size.
inline void attend(const float* query, const float* keys, const float* values, int slots, int size,
                   float scale, const Seen& seen, float* scores, float* out) {
    int last = std::min(slots, padded(seen.end()));
    const int whole = seen.extra == 0 ? seen.until : last;  // slots whose scores are kept
    vfloat best = splat(-INFINITY);
    for (int t = 0; t < last; t += LANES) {
        vfloat score{};
        const float* key = keys + t;
        for (int d = 0; d < size; ++d, key += slots) score += query[d] * load(key);
        score *= scale;
        if (t + LANES > whole || seen.mask != nullptr) {
            for (int i = 0; i < LANES; ++i) {
                const int slot = t + i;
                const bool sees = slot < seen.until && (seen.mask == nullptr || seen.mask[slot] != 0);
                if (!sees) score[i] = -INFINITY;
            }
        }
        store(scores + t, score);
        best = larger(best, score);
    }
    if (seen.extra > 0) {
        // The path's scores move to where they were if it lay behind the other slots: so sums have
        // the terms of a plain pass, in its order.
        const int count = seen.until + seen.extra;
        for (int i = 0; i < seen.extra; ++i) scores[seen.until + i] = scores[seen.path[i]];
        last = std::min(slots, padded(count));
        std::fill(scores + count, scores + last, -INFINITY);
        best = splat(-INFINITY);
        for (int t = 0; t < last; t += LANES) best = larger(best, load(scores + t));
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
        for (int i = 0; i < seen.extra; ++i) {
            mixed += scores[seen.until + i] * load(values + (size_t)seen.path[i] * size + d);
        }
        store(out + d, mixed * inverse);
    }
}
