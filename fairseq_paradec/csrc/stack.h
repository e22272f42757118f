// A Transformer's encoder or decoder over a chunk of tokens of every row, against a cache.
#pragma once

#include "layers.h"

struct Layer {
    bool pre_norm = false;
    Activation activation = Activation::relu;
    Norm self_norm, cross_norm, feed_norm;
    Linear qkv, self_out, cross_query, cross_out, feed_in, feed_out;  // outputs of 0: there is none
};

struct Stack {
    int dim = 0, heads = 0, head_size = 0;  // head_size: padded; a head's true size is in `scale`
    float scale = 1;                        // of attention's scores
    Memory<float> embedding;                // vocabulary x dim (padded), scaled
    Memory<float> positions;                // num_positions x dim (padded); null: none
    int vocabulary = 0, num_positions = 0;
    Norm embedding_norm, final_norm;
    std::vector<Layer> layers;
};

// What one pass is given. Tokens are those of all rows, one after the other, without padding.
struct Chunk {
    int count = 0;               // N tokens
    const int64_t* tokens;       // N
    const int32_t* row;          // N, whose token
    const int32_t* place;        // N, its slot in the cache, and its position
    const int32_t* until;        // N, see Seen
    const uint8_t* mask;         // N x slots, see Seen; null: none
    int mask_stride;
};

// Keys and values, layers x rows x heads x (head_size x slots, or slots x head_size).
struct Store {
    float *keys, *values;
    int rows = 0, slots = 0;
    const int32_t* length = nullptr;  // of the source: rows
    size_t at(int layer, int row, int head, const Stack& stack) const {
        return (((size_t)layer * rows + row) * stack.heads + head) * stack.head_size * slots;
    }
};

// What a pass computes in; kept by each thread of the caller, for it is as large in every pass.
struct Workspace {
    std::vector<float> normed, wide, mixed;
    Inputs inputs;
};

inline float* grown(std::vector<float>& memory, size_t count) {
    if (memory.size() < count + 2 * LANES) memory.resize(count + 2 * LANES);
    return memory.data();
}

inline void multiply(const Linear& map, const float* x, int stride, int rows, const Output& out, Workspace& work) {
    lay_out(work.inputs, map, x, stride, rows);
    product(map, work.inputs, out);
}

// Attention of all tokens and heads; query: N x (heads * head_size), with this stride.
template <class See>
inline void attend_all(const Stack& stack, const Chunk& chunk, const Store& store, int layer,
                       const float* query, int stride, float* out, See see) {
    const int size = stack.head_size, all = stack.heads * size, tasks = chunk.count * stack.heads;
    const long work = (long)tasks * size * store.slots;
#pragma omp parallel if (work > SERIAL)
    {
        std::vector<float> scores(padded(store.slots) + LANES);
#pragma omp for schedule(static)
        for (int task = 0; task < tasks; ++task) {
            const int i = task / stack.heads, head = task % stack.heads;
            const size_t at = store.at(layer, chunk.row[i], head, stack);
            attend(query + (size_t)i * stride + head * size, store.keys + at, store.values + at,
                   store.slots, size, stack.scale, see(i), scores.data(), out + (size_t)i * all + head * size);
        }
    }
}

// Run the layers over a chunk; states: N x padded(dim), in and out.
inline void run(const Stack& stack, const Chunk& chunk, const Store& own, const Store* source, float* x, Workspace& work) {
    const int rows = chunk.count, dim = stack.dim, stride = padded(dim), size = stack.head_size;
    const int all = stack.heads * size;
    float* normed = grown(work.normed, (size_t)rows * stride);
    float* mixed = grown(work.mixed, (size_t)rows * all);
    const auto before = [&](const Layer& layer, const Norm& norm) {
        if (!layer.pre_norm) return (const float*)x;
        normalise(norm, x, rows, dim, normed);
        return (const float*)normed;
    };
    const auto after = [&](const Layer& layer, const Norm& norm) {
        if (!layer.pre_norm) normalise(norm, x, rows, dim, x);
    };
    for (size_t index = 0; index < stack.layers.size(); ++index) {
        const Layer& layer = stack.layers[index];
        // 1. Self-attention over the cache and the chunk.
        float* wide = grown(work.wide, (size_t)rows * 3 * all);
        multiply(layer.qkv, before(layer, layer.self_norm), stride, rows, {wide, 3 * all}, work);
        for (int i = 0; i < rows; ++i) {
            for (int head = 0; head < stack.heads; ++head) {
                const size_t at = own.at((int)index, chunk.row[i], head, stack);
                const float* key = wide + (size_t)i * 3 * all + all + head * size;
                for (int d = 0; d < size; ++d) own.keys[at + (size_t)d * own.slots + chunk.place[i]] = key[d];
                std::memcpy(own.values + at + (size_t)chunk.place[i] * size, key + all, size * sizeof(float));
            }
        }
        attend_all(stack, chunk, own, (int)index, wide, 3 * all, mixed, [&](int i) {
            const uint8_t* mask = chunk.mask == nullptr ? nullptr : chunk.mask + (size_t)i * chunk.mask_stride;
            return Seen{chunk.until[i], mask};
        });
        multiply(layer.self_out, mixed, all, rows, {x, stride, x}, work);
        after(layer, layer.self_norm);
        // 2. Attention to the source.
        if (source != nullptr) {
            wide = grown(work.wide, (size_t)rows * all);
            multiply(layer.cross_query, before(layer, layer.cross_norm), stride, rows, {wide, all}, work);
            attend_all(stack, chunk, *source, (int)index, wide, all, mixed,
                       [&](int i) { return Seen{source->length[chunk.row[i]], nullptr}; });
            multiply(layer.cross_out, mixed, all, rows, {x, stride, x}, work);
            after(layer, layer.cross_norm);
        }
        // 3. Feed-forward.
        const int inner = layer.feed_in.width();
        wide = grown(work.wide, (size_t)rows * inner);
        multiply(layer.feed_in, before(layer, layer.feed_norm), stride, rows, {wide, inner, nullptr, layer.activation}, work);
        multiply(layer.feed_out, wide, inner, rows, {x, stride, x}, work);
        after(layer, layer.feed_norm);
    }
    if (stack.final_norm.weight) normalise(stack.final_norm, x, rows, dim, x);
}

// Embed a chunk: scaled vectors of the tokens, their positions', and the norm.
inline void embed(const Stack& stack, const Chunk& chunk, float* x) {
    const int stride = padded(stack.dim);
    for (int i = 0; i < chunk.count; ++i, x += stride) {
        const float* token = stack.embedding.get() + (size_t)chunk.tokens[i] * stride;
        const float* position = nullptr;
        if (stack.positions) {
            position = stack.positions.get() + (size_t)std::min(chunk.place[i], stack.num_positions - 1) * stride;
        }
        for (int d = 0; d < stride; d += LANES) {
            store(x + d, position == nullptr ? load(token + d) : load(token + d) + load(position + d));
        }
        if (stack.embedding_norm.weight) normalise(stack.embedding_norm, x, 1, stack.dim, x);
    }
}
