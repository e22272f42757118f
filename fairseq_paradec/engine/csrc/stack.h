// A Transformer's encoder or decoder over a chunk of tokens of every row, with a cache.
#pragma once

#include <numeric>
#include <utility>

#include "layers.h"

struct Layer {
    bool pre_norm = false;
    Activation activation = Activation::relu;
    Norm self_norm, cross_norm, feed_norm;
    // 0 outputs: absent; feed_gate: what hidden units are multiplied with
    Linear qkv, self_out, cross_query, cross_out, feed_in, feed_gate, feed_out;
};

struct Stack {
    int dim = 0, heads = 0, head_size = 0;  // head_size: padded; a head's true size is in `scale`
    float scale = 1;                        // of attention's scores
    const float* embedding = nullptr;       // vocabulary x dim (padded); the caller's, if it can be
    Memory<float> own_embedding;
    float embedding_scale = 1;
    Memory<float> positions;                // num_positions x dim (padded); null: none
    int vocabulary = 0, num_positions = 0;
    Memory<float> biases;                   // of self-attention, heads x 2 * (reach + LANES); null: none
    int reach = 0;                          // farther keys have the bias of this distance
    Norm embedding_norm, final_norm;
    std::vector<Layer> layers;
};

// The inputs of one pass: rows x width tokens, some of them padding.
struct Chunk {
    int rows, width;
    const int64_t* tokens;        // rows x width
    const int32_t* begins;        // rows, a row's first token that is no padding; null: 0
    const int32_t* counts;        // rows, the number of tokens from there on; null: width
    const int32_t* starts;        // rows, the number of cached tokens; null: 0
    const int32_t* own_rows;      // rows, their places in the cache; null: 0, 1, 2, ...
    const int32_t* source_rows;   // rows, their places in the source's
    const int32_t* seen;          // the number of chunk tokens a token sees; null: up to itself
    int seen_rows;                // rows of `seen`, x width: all, or 1 for all
    const uint8_t* mask;          // width x slots, the slots that a token sees; null: as above
    int slots;                    // of the mask
    const int32_t* bases;         // rows, the first slots of trees; null: there is no tree
    const int32_t* depths;        // rows x width, a token's position behind its row's base
    const uint8_t* sees;          // rows x width x tree, the slots from the base on that a token sees
    int tree;
};

// Keys and values, layers x rows x heads x slots x head_size; one of all layers, or one of each.
struct Store {
    float *keys, *values;
    int layers, rows, slots;
    const int32_t* lengths;  // of the source: rows
    size_t at(int layer, int row, int head, const Stack& stack) const {
        return (((size_t)(layer % layers) * rows + row) * stack.heads + head) * stack.head_size * slots;
    }
};

// One token of a chunk.
struct Token {
    int64_t word;
    int own_row, source_row, place, position;  // place: its slot
    Seen seen;
    size_t at;  // in the chunk
};

// The buffers of a pass; each calling thread keeps its own for later passes.
struct Workspace {
    int threads = 1;  // the most that a call may use
    std::vector<Token> tokens;
    std::vector<int32_t> paths;  // of the tokens of a tree, each as long as it can be
    std::vector<float> states, normed, wide, mixed, scores, logits;
    Room keys, values;  // of a search
    Inputs inputs;
};

inline float* grown(std::vector<float>& memory, size_t count) {
    if (memory.size() < count + 2 * LANES) memory.resize(count + 2 * LANES);
    return memory.data();
}

inline void multiply(const Linear& map, const float* x, int stride, int rows, const Output& out, Workspace& work) {
    if (rows == 0) return;
    lay_out(work.inputs, map, x, stride, rows);
    product(map, work.inputs, out, work.threads);
    if (map.exact != nullptr) take_exact(map, work.inputs, out, work.threads);
}

// What a token of a tree sees: its own slot, and those of its mask.
inline Seen path_of(const Chunk& chunk, int row, const Token& token, int slots, int32_t* path) {
    const int base = chunk.bases[row], end = std::min(base + chunk.tree, slots);
    const uint8_t* sees = chunk.sees + token.at * chunk.tree;
    int extra = 0;
    for (int slot = base; slot < end; ++slot, ++sees) {
        if (*sees != 0 || slot == token.place) path[extra++] = slot;
    }
    return {base, nullptr, path, extra};
}

// List a chunk's tokens without padding; false: a token is outside the vocabulary, or has no slot.
inline bool list(const Stack& stack, const Chunk& chunk, const Store& own, Workspace& work) {
    work.tokens.clear();
    if (chunk.sees != nullptr) work.paths.resize((size_t)chunk.rows * chunk.width * chunk.tree);
    for (int b = 0; b < chunk.rows; ++b) {
        const int begin = chunk.begins == nullptr ? 0 : chunk.begins[b];
        const int count = chunk.counts == nullptr ? chunk.width : chunk.counts[b];
        const int start = chunk.starts == nullptr ? 0 : chunk.starts[b];
        const int own_row = chunk.own_rows == nullptr ? b : chunk.own_rows[b];
        const int source_row = chunk.source_rows == nullptr ? b : chunk.source_rows[b];
        const int32_t* seen = chunk.seen;
        if (seen != nullptr && chunk.seen_rows > 1) seen += (size_t)b * chunk.width;
        for (int j = 0; j < count; ++j) {
            Token token;
            token.at = (size_t)b * chunk.width + begin + j;
            token.word = chunk.tokens[token.at];
            token.own_row = own_row;
            token.source_row = source_row;
            token.place = token.position = start + j;
            token.seen.until = seen == nullptr ? token.place + 1 : start + seen[j];
            if (chunk.mask != nullptr) token.seen = {chunk.slots, chunk.mask + (size_t)j * chunk.slots};
            if (chunk.sees != nullptr) {
                token.position = chunk.bases[b] + chunk.depths[token.at];
                token.seen = path_of(chunk, b, token, own.slots, work.paths.data() + token.at * chunk.tree);
            }
            if (token.word < 0 || token.word >= stack.vocabulary) return false;
            if (token.place >= own.slots || token.seen.until > own.slots) return false;
            work.tokens.push_back(token);
        }
    }
    return true;
}

// Attention of all tokens and heads; query: N x (heads * head_size), with this stride. bias(token, head): see `Near`.
template <class See, class BiasOf>
inline void attend_all(const Stack& stack, const Store& store, int layer, const float* query, int stride,
                       float* out, Workspace& work, const See& see, const BiasOf& bias) {
    const int size = stack.head_size, all = stack.heads * size, tasks = (int)work.tokens.size() * stack.heads;
    const int scratch = padded(store.slots) + LANES;
    float* scores = grown(work.scores, (size_t)work.threads * scratch);
    for_each(work.threads, tasks, (long)tasks * size * store.slots > SERIAL, [&](int task, int part) {
        const int i = task / stack.heads, head = task % stack.heads;
        const auto [row, seen] = see(work.tokens[i]);
        const size_t at = store.at(layer, row, head, stack);
        attend(query + (size_t)i * stride + head * size, store.keys + at, store.values + at, size,
               stack.scale, seen, bias(work.tokens[i], head), scores + (size_t)part * scratch,
               out + (size_t)i * all + head * size);
    });
}

// Write a token's keys and values, of all heads.
inline void put(const Stack& stack, const Store& store, int layer, int row, int slot, const float* keys,
                const float* values) {
    const int size = stack.head_size;
    for (int head = 0; head < stack.heads; ++head, keys += size, values += size) {
        const size_t at = store.at(layer, row, head, stack) + (size_t)slot * size;
        std::memcpy(store.keys + at, keys, size * sizeof(float));
        std::memcpy(store.values + at, values, size * sizeof(float));
    }
}

// Where tokens look in the source: the mean of a layer's first heads.
struct Attention {
    int layer, heads;
    float* weights;  // of the chunk's tokens x slots of the source
};

// Write the weights of a layer's heads; query: as for `attend_all`.
inline void watch(const Stack& stack, const Store& source, const float* query, int stride, const Attention& to, Workspace& work) {
    const int size = stack.head_size;
    float* scores = grown(work.scores, padded(source.slots) + LANES + size);
    float* unread = scores + padded(source.slots) + LANES;
    for (size_t i = 0; i < work.tokens.size(); ++i) {
        const Token& token = work.tokens[i];
        const int count = source.lengths[token.source_row];
        float* weights = to.weights + token.at * source.slots;
        for (int head = 0; head < to.heads; ++head) {
            const size_t at = source.at(to.layer, token.source_row, head, stack);
            attend(query + i * stride + head * size, source.keys + at, source.values + at, size, stack.scale,
                   Seen{count}, Anywhere{}, scores, unread);
            const float total = std::accumulate(scores, scores + count, 0.0f) * to.heads;
            for (int t = 0; t < count; ++t) weights[t] += scores[t] / total;
        }
    }
}

// Run the layers over the tokens of a workspace; states: N x padded(dim), in and out. With `attention` no
// further than to its layer's weights.
inline void run(const Stack& stack, const Store& own, const Store* source, float* x, Workspace& work,
                const Attention* attention = nullptr) {
    const int rows = (int)work.tokens.size(), dim = stack.dim, stride = padded(dim), size = stack.head_size;
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
    const auto own_row = [](const Token& t) { return std::pair(t.own_row, t.seen); };
    const auto source_row = [&](const Token& t) { return std::pair(t.source_row, Seen{source->lengths[t.source_row]}); };
    const auto anywhere = [](const Token&, int) { return Anywhere{}; };
    const auto near = [&](const Token& t, int head) {
        const int around = stack.reach + LANES;
        return Near{stack.biases.get() + (size_t)head * 2 * around + around, stack.reach, t.position};
    };
    for (size_t index = 0; index < stack.layers.size(); ++index) {
        const Layer& layer = stack.layers[index];
        // 1. Self-attention over the cache and the chunk.
        float* wide = grown(work.wide, (size_t)rows * 3 * all);
        multiply(layer.qkv, before(layer, layer.self_norm), stride, rows, {wide, 3 * all}, work);
        for (int i = 0; i < rows; ++i) {
            const Token& token = work.tokens[i];
            const float* keys = wide + (size_t)i * 3 * all + all;
            put(stack, own, (int)index, token.own_row, token.place, keys, keys + all);
        }
        if (stack.biases) {
            attend_all(stack, own, (int)index, wide, 3 * all, mixed, work, own_row, near);
        } else {
            attend_all(stack, own, (int)index, wide, 3 * all, mixed, work, own_row, anywhere);
        }
        multiply(layer.self_out, mixed, all, rows, {x, stride, x}, work);
        after(layer, layer.self_norm);
        // 2. Attention to the source.
        if (source != nullptr) {
            wide = grown(work.wide, (size_t)rows * all);
            multiply(layer.cross_query, before(layer, layer.cross_norm), stride, rows, {wide, all}, work);
            if (attention != nullptr && attention->layer == (int)index) {
                return watch(stack, *source, wide, all, *attention, work);
            }
            attend_all(stack, *source, (int)index, wide, all, mixed, work, source_row, anywhere);
            multiply(layer.cross_out, mixed, all, rows, {x, stride, x}, work);
            after(layer, layer.cross_norm);
        }
        // 3. Feed-forward.
        const int inner = layer.feed_in.width();
        const bool is_gated = layer.feed_gate.outputs > 0;
        wide = grown(work.wide, (size_t)rows * inner * (is_gated ? 2 : 1));
        multiply(layer.feed_in, before(layer, layer.feed_norm), stride, rows, {wide, inner, nullptr, layer.activation}, work);
        if (is_gated && rows > 0) {  // the inputs are laid out as for the map before
            float* gate = wide + (size_t)rows * inner;
            product(layer.feed_gate, work.inputs, {gate, inner}, work.threads);
            for (size_t i = 0; i < (size_t)rows * inner; i += LANES) store(wide + i, load(wide + i) * load(gate + i));
        }
        multiply(layer.feed_out, wide, inner, rows, {x, stride, x}, work);
        after(layer, layer.feed_norm);
    }
    if (stack.final_norm.weight) normalise(stack.final_norm, x, rows, dim, x);
}

// Copy slots of a row to slots of a row, `count` adjacent ones, of all layers and heads.
inline void copy_slots(const Stack& stack, const Store& store, int to_row, int to, int of_row, int of, int count) {
    const size_t size = stack.head_size, bytes = count * size * sizeof(float);
    for (int layer = 0; layer < (int)stack.layers.size(); ++layer) {
        for (int head = 0; head < stack.heads; ++head) {
            const size_t target = store.at(layer, to_row, head, stack) + to * size;
            const size_t origin = store.at(layer, of_row, head, stack) + of * size;
            std::memcpy(store.keys + target, store.keys + origin, bytes);
            std::memcpy(store.values + target, store.values + origin, bytes);
        }
    }
}

// Copy all slots of a store to a larger one.
inline void copy_store(const Stack& stack, const Store& to, const Store& from) {
    const size_t count = (size_t)from.slots * stack.head_size, rows = (size_t)from.layers * from.rows * stack.heads;
    for (size_t row = 0; row < rows; ++row) {
        const size_t target = row * to.slots * stack.head_size, origin = row * count;
        std::memcpy(to.keys + target, from.keys + origin, count * sizeof(float));
        std::memcpy(to.values + target, from.values + origin, count * sizeof(float));
    }
}

// Embed tokens: the norm of scaled vectors plus position vectors.
inline void embed(const Stack& stack, const std::vector<Token>& tokens, float* x) {
    const int stride = padded(stack.dim);
    for (const Token& token : tokens) {
        const float* word = stack.embedding + (size_t)token.word * stride;
        const float* position = nullptr;
        if (stack.positions) {
            position = stack.positions.get() + (size_t)std::min(token.position, stack.num_positions - 1) * stride;
        }
        for (int d = 0; d < stride; d += LANES) {
            const vfloat scaled = stack.embedding_scale * load(word + d);
            store(x + d, position == nullptr ? scaled : scaled + load(position + d));
        }
        if (stack.embedding_norm.weight) normalise(stack.embedding_norm, x, 1, stack.dim, x);
        x += stride;
    }
}

// Run a pass; states: rows x width x padded(dim), zeros at padding. False: see `list`.
inline bool pass(const Stack& stack, const Chunk& chunk, const Store& own, const Store* source, float* states, Workspace& work) {
    if (!list(stack, chunk, own, work)) return false;
    const size_t stride = padded(stack.dim), count = work.tokens.size(), all = (size_t)chunk.rows * chunk.width;
    float* x = count == all ? states : grown(work.states, count * stride);
    embed(stack, work.tokens, x);
    run(stack, own, source, x, work);
    if (count < all) {
        std::memset(states, 0, all * stride * sizeof(float));
        for (size_t i = 0; i < count; ++i) std::memcpy(states + work.tokens[i].at * stride, x + i * stride, stride * sizeof(float));
    }
    return true;
}

// Find where a chunk's tokens look in the source; weights: zeros. False: see `list`.
inline bool attend_source(const Stack& stack, const Chunk& chunk, const Store& own, const Store& source,
                          const Attention& to, Workspace& work) {
    if (!list(stack, chunk, own, work)) return false;
    float* x = grown(work.states, work.tokens.size() * padded(stack.dim));
    embed(stack, work.tokens, x);
    run(stack, own, &source, x, work, &to);
    return true;
}

// Make the keys and values of a source for all layers; map: to layers x 2 x heads x head_size.
inline void put_source(const Stack& stack, const Linear& map, const float* states, int stride, int length,
                       const int32_t* begins, const Store& source, Workspace& work) {
    const int all = stack.heads * stack.head_size, width = 2 * all * (int)stack.layers.size();
    // Several rows at a time, with their padding: so the map is not read once for each.
    const int most = std::max(1, 128 / std::max(1, length));
    for (int first = 0; first < source.rows; first += most) {
        const int rows = std::min(most, source.rows - first);
        float* wide = grown(work.wide, (size_t)rows * length * width);
        multiply(map, states + (size_t)first * length * stride, stride, rows * length, {wide, width}, work);
        for (int r = 0; r < rows; ++r) {
            const int row = first + r, begin = begins == nullptr ? 0 : begins[row];
            for (int i = 0; i < source.lengths[row]; ++i) {
                const float* keys = wide + ((size_t)r * length + begin + i) * width;
                for (int layer = 0; layer < (int)stack.layers.size(); ++layer, keys += 2 * all) {
                    put(stack, source, layer, row, i, keys, keys + all);
                }
            }
        }
    }
}
