// The C interface of the native passes: plain pointers and numbers, called through ctypes.
//
// The library needs no header of torch or Python, so it fits every release of them. It is built once
// for each instruction set; Python loads the processor's.
#include <cstddef>
#include <new>
#include <string>

#include "draft.h"
#include "search_drafts.h"

#define API extern "C" __attribute__((visibility("default")))

#ifdef __GLIBCXX__
// What a copied vector calls, if it is too long. GCC 11 and later take it from libstdc++, which has it
// since then: with one of its own the library runs beside older ones, as manylinux_2_28 promises.
// Weak, so that a static libstdc++ may have its own.
namespace std {
[[noreturn]] __attribute__((weak)) void __throw_bad_array_new_length() { throw bad_alloc(); }
}  // namespace std
#endif

namespace {

thread_local Workspace work;

// The calling thread's workspace; every call says on how many threads it may compute.
Workspace& working(int threads) {
    work.threads = threads;
    return work;
}

Norm make_norm(const float* weight, const float* bias, int size, float epsilon) {
    Norm norm;
    norm.epsilon = epsilon;
    norm.weight = allocate<float>(padded(size));
    std::memcpy(norm.weight.get(), weight, size * sizeof(float));
    if (bias == nullptr) return norm;
    norm.bias = allocate<float>(padded(size));
    std::memcpy(norm.bias.get(), bias, size * sizeof(float));
    return norm;
}

Memory<float> make_table(const float* vectors, int count, int size) {
    const int stride = padded(size);
    Memory<float> table = allocate<float>((size_t)count * stride);
    for (int i = 0; i < count; ++i) {
        for (int d = 0; d < size; ++d) table[(size_t)i * stride + d] = vectors[(size_t)i * size + d];
    }
    return table;
}

// The version of this interface: it goes up when a function or the meaning of a number changes.
constexpr int32_t VERSION = 12;

// The maps and norms of a layer, and the norms of a stack (layer -1), as paradec_stack_map and
// paradec_stack_norm number them.
enum MapOf : int { QKV, SELF_OUT, CROSS_QUERY, CROSS_OUT, FEED_IN, FEED_GATE, FEED_OUT };
enum NormOf : int { SELF_NORM, CROSS_NORM, FEED_NORM };
enum NormOfStack : int { EMBEDDING_NORM, FINAL_NORM };

#define AT(type, field) " " #field "@" + std::to_string(offsetof(type, field))
#define SIZE(type) "\n" #type " " + std::to_string(sizeof(type))

// What Python mirrors: the version; then of each structure its size, and its fields with their offsets.
std::string layout() {
    return std::to_string(VERSION) +
           SIZE(Chunk) + AT(Chunk, rows) + AT(Chunk, width) + AT(Chunk, tokens) + AT(Chunk, begins) +
           AT(Chunk, counts) + AT(Chunk, starts) + AT(Chunk, own_rows) + AT(Chunk, source_rows) +
           AT(Chunk, seen) + AT(Chunk, seen_rows) + AT(Chunk, mask) + AT(Chunk, slots) + AT(Chunk, bases) +
           AT(Chunk, depths) + AT(Chunk, sees) + AT(Chunk, tree) +
           SIZE(Store) + AT(Store, keys) + AT(Store, values) + AT(Store, layers) + AT(Store, rows) +
           AT(Store, slots) + AT(Store, lengths) +
           SIZE(Rules) + AT(Rules, pad) + AT(Rules, unknown) + AT(Rules, end) + AT(Rules, first) +
           AT(Rules, unknown_penalty) + AT(Rules, temperature) + AT(Rules, penalty) + AT(Rules, of_logits) +
           AT(Rules, suppressed) + AT(Rules, sequences) + AT(Rules, sequence_sizes) + AT(Rules, num_suppressed) +
           AT(Rules, num_sequences) + AT(Rules, ngram) + AT(Rules, has_first) + AT(Rules, renormalised) +
           SIZE(Before) + AT(Before, text) + AT(Before, more) + AT(Before, length) + AT(Before, more_length) +
           SIZE(Writing) + AT(Writing, counts) + AT(Writing, most) + AT(Writing, least) +
           AT(Writing, normalised) + AT(Writing, limits) + AT(Writing, forced) + AT(Writing, before) +
           AT(Writing, tokens) + AT(Writing, scores) + AT(Writing, written) +
           SIZE(Choices) + AT(Choices, limits) + AT(Choices, forced) + AT(Choices, before) +
           AT(Choices, drafted) + AT(Choices, best) + AT(Choices, score) + AT(Choices, drafted_score) + AT(Choices, drafted_rank) +
           AT(Choices, normalised) + AT(Choices, count) +
           SIZE(Step) + AT(Step, sentences) + AT(Step, width) + AT(Step, words) + AT(Step, candidates) +
           AT(Step, beam) + AT(Step, kept) + AT(Step, end) + AT(Step, scores) + AT(Step, tokens) +
           AT(Step, token_scores) + AT(Step, end_scores) + AT(Step, pairs) +
           SIZE(Extended) + AT(Extended, scores) + AT(Extended, parents) + AT(Extended, words) +
           AT(Extended, word_scores) +
           SIZE(Search) + AT(Search, sentences) + AT(Search, beam) + AT(Search, room) + AT(Search, early) +
           AT(Search, enough) + AT(Search, candidates) +
           AT(Search, words_a_step) + AT(Search, pairs) + AT(Search, starts) + AT(Search, divisors) +
           AT(Search, limits) + AT(Search, most) + AT(Search, bits) + AT(Search, forced) + AT(Search, passes) +
           AT(Search, counts) + AT(Search, lengths) + AT(Search, totals) + AT(Search, words) + AT(Search, scores) +
           SIZE(Searcher) + AT(Searcher, stack) + AT(Searcher, projection) + AT(Searcher, source) +
           SIZE(Drafting) + AT(Drafting, depth) + AT(Drafting, joined) + AT(Drafting, rounds) +
           SIZE(Drafted) + AT(Drafted, by) + AT(Drafted, joined) + AT(Drafted, most) + AT(Drafted, adaptive) +
           AT(Drafted, least) + AT(Drafted, normalised) + AT(Drafted, positions) + AT(Drafted, window) +
           AT(Drafted, hybrid) + AT(Drafted, whole) + AT(Drafted, first) + AT(Drafted, masks) +
           AT(Drafted, caches) + AT(Drafted, mask) + AT(Drafted, heads) + AT(Drafted, start) +
           AT(Drafted, min_length) + AT(Drafted, forced_length) +
           SIZE(Heads) + AT(Heads, inner) + AT(Heads, outer) + AT(Heads, maps) + AT(Heads, learned) +
           AT(Heads, identity) + AT(Heads, seen) + AT(Heads, activation) +
           SIZE(Entry) + AT(Entry, limit) + AT(Entry, prefix) + AT(Entry, given) + AT(Entry, source) +
           AT(Entry, prefix_length) + AT(Entry, given_length) + AT(Entry, source_length) + AT(Entry, length) +
           AT(Entry, own_row) + AT(Entry, source_row) + AT(Entry, draft_own_row) + AT(Entry, draft_source_row) +
           SIZE(Written) + AT(Written, tokens) + AT(Written, scores) + AT(Written, passes) + AT(Written, length) +
           AT(Written, num_passes) + AT(Written, ended) +
           SIZE(Reader) + AT(Reader, stack) + AT(Reader, projection) + AT(Reader, own) + AT(Reader, source) +
           SIZE(Until) + AT(Until, milliseconds) + AT(Until, any);
}

}  // namespace

API const char* paradec_layout() {
    static const std::string text = layout();
    return text.c_str();
}

// Whether this process may use the instruction set that the library is built for.
API int paradec_allowed() { return tiles_allowed(); }

API int paradec_lanes() { return LANES; }

API Stack* paradec_stack_new(int dim, int heads, int head_size, float scale, int layers) try {
    auto stack = std::make_unique<Stack>();
    stack->dim = dim;
    stack->heads = heads;
    stack->head_size = head_size;
    stack->scale = scale;
    stack->layers.resize(layers);
    return stack.release();
} catch (const std::bad_alloc&) {
    return nullptr;
}

API void paradec_stack_free(Stack* stack) { delete stack; }

// The embedding must outlive the stack.
API int paradec_stack_tables(Stack* stack, const float* embedding, int vocabulary, float scale,
                             const float* positions, int num_positions) try {
    if (padded(stack->dim) != stack->dim) {
        stack->own_embedding = make_table(embedding, vocabulary, stack->dim);
        embedding = stack->own_embedding.get();
    }
    stack->embedding = embedding;
    stack->embedding_scale = scale;
    stack->vocabulary = vocabulary;
    stack->num_positions = num_positions;
    if (positions != nullptr) stack->positions = make_table(positions, num_positions, stack->dim);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Biases of self-attention by distance, heads x (2 * reach + 1), from -reach to reach; see `Near`.
API int paradec_stack_biases(Stack* stack, const float* biases, int reach) try {
    const int around = reach + LANES;
    Memory<float> table = allocate<float>((size_t)stack->heads * 2 * around);
    for (int head = 0; head < stack->heads; ++head) {
        const float* same = biases + (size_t)head * (2 * reach + 1) + reach;
        float* to = table.get() + (size_t)head * 2 * around + around;
        for (int d = -around; d < around; ++d) to[d] = same[std::clamp(d, -reach, reach)];
    }
    stack->biases = std::move(table);
    stack->reach = reach;
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

API void paradec_stack_layer(Stack* stack, int layer, int pre_norm, int activation) {
    stack->layers[layer].pre_norm = pre_norm != 0;
    stack->layers[layer].activation = (Activation)activation;
}

static Linear& map_of(Stack* stack, int layer, int which) {
    Layer& own = stack->layers[layer];
    Linear* maps[FEED_OUT + 1];
    maps[QKV] = &own.qkv;
    maps[SELF_OUT] = &own.self_out;
    maps[CROSS_QUERY] = &own.cross_query;
    maps[CROSS_OUT] = &own.cross_out;
    maps[FEED_IN] = &own.feed_in;
    maps[FEED_GATE] = &own.feed_gate;
    maps[FEED_OUT] = &own.feed_out;
    return *maps[which];
}

API int paradec_stack_map(Stack* stack, int layer, int which, const float* weight, const float* bias,
                          int outputs, int inputs, int form) try {
    map_of(stack, layer, which) = pack(weight, bias, outputs, inputs, (Form)form);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Packed maps in files: how their numbers lie, bytes of one, from a map to memory, and a map in memory.
API const char* paradec_packing() {
    static const std::string text = std::to_string(PANEL) + " outputs; groups of " + std::to_string(BF16_GROUP) +
                                    " and " + std::to_string(INT8_GROUP) + "; tiles " + std::to_string(TILES);
    return text.c_str();
}
API size_t paradec_map_bytes(int outputs, int inputs, int form) { return bytes_in_file(outputs, inputs, (Form)form); }
API void paradec_map_write(Linear* map, char* to) { write_to_file(*map, to); }
API void paradec_stack_map_write(Stack* stack, int layer, int which, char* to) {
    write_to_file(map_of(stack, layer, which), to);
}
API Linear* paradec_map_at(char* from, int outputs, int inputs, int form) try {
    return new Linear(from_file(from, outputs, inputs, (Form)form));
} catch (const std::bad_alloc&) {
    return nullptr;
}
API void paradec_stack_map_at(Stack* stack, int layer, int which, char* from, int outputs, int inputs, int form) {
    map_of(stack, layer, which) = from_file(from, outputs, inputs, (Form)form);
}

// Without a bias it is a norm of mean squares.
API int paradec_stack_norm(Stack* stack, int layer, int which, const float* weight, const float* bias, float epsilon) try {
    Norm norm = make_norm(weight, bias, stack->dim, epsilon);
    if (layer < 0) {
        (which == EMBEDDING_NORM ? stack->embedding_norm : stack->final_norm) = std::move(norm);
    } else {
        Layer& own = stack->layers[layer];
        (which == SELF_NORM ? own.self_norm : which == CROSS_NORM ? own.cross_norm : own.feed_norm) = std::move(norm);
    }
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

API Linear* paradec_map_new(const float* weight, const float* bias, int outputs, int inputs, int form) try {
    return new Linear(pack(weight, bias, outputs, inputs, (Form)form));
} catch (const std::bad_alloc&) {
    return nullptr;
}

// Whether weights of 4 and 2 bits are fewer bytes than those of 8.
API int paradec_halves() { return HALVES; }

// A map in spans whose largest outputs are another's in int8; both must outlive it.
API Linear* paradec_map_with_exact(const Linear* map, const Linear* exact) try {
    return new Linear(with_exact(*map, *exact));
} catch (const std::bad_alloc&) {
    return nullptr;
}

API void paradec_map_free(Linear* map) { delete map; }

// y = activation(map(x)): rows x inputs -> rows x outputs, each with its stride.
API int paradec_map(const Linear* map, const float* x, int stride, int rows, float* y, int to_stride, int activation,
                    int threads) try {
    multiply(*map, x, stride, rows, {y, to_stride, nullptr, (Activation)activation}, working(threads));
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// One pass; states: rows x width x padded(dim). Returns 2 if a token has no vector or no slot.
API int paradec_pass(const Stack* stack, const Chunk* chunk, const Store* own, const Store* source,
                     float* states, int threads) try {
    return pass(*stack, *chunk, *own, source, states, working(threads)) ? 0 : 2;
} catch (const std::bad_alloc&) {
    return 1;
}

// Where a chunk's tokens look in the source: the mean of the first heads of a layer; weights: rows x width x
// slots of the source, zeros. Later layers are not run. Returns 2 as paradec_pass does.
API int paradec_attention(const Stack* stack, const Chunk* chunk, const Store* own, const Store* source, int layer,
                          int heads, float* weights, int threads) try {
    return attend_source(*stack, *chunk, *own, *source, {layer, heads, weights}, working(threads)) ? 0 : 2;
} catch (const std::bad_alloc&) {
    return 1;
}

// Keys and values of a source; states: rows x length x dim, with their stride.
API int paradec_source(const Stack* stack, const Linear* map, const float* states, int stride, int length,
                       const int32_t* begins, const Store* source, int threads) try {
    put_source(*stack, *map, states, stride, length, begins, *source, working(threads));
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Copy the first slots of rows of a cache: of[i] to to[i].
API void paradec_copy(const Stack* stack, const Store* own, const int32_t* to, const int32_t* of, int count, int used) {
    for (int i = 0; i < count; ++i) copy_slots(*stack, *own, to[i], 0, of[i], 0, used);
}

// Move slots of a cache: of row rows[i], of[i] to to[i], in this order.
API void paradec_move(const Stack* stack, const Store* own, const int32_t* rows, const int32_t* to, const int32_t* of,
                      int count) {
    for (int i = 0; i < count; ++i) copy_slots(*stack, *own, rows[i], to[i], rows[i], of[i], 1);
}

// Project hidden states and choose tokens.
API int paradec_choose(const Linear* projection, const Rules* rules, const Choices* choices, const float* hidden,
                       int stride, int rows, int threads) try {
    choose(*projection, *rules, *choices, hidden, stride, rows, working(threads));
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Read a chunk and write greedily behind it; see `write`. Returns 2 as paradec_pass does.
API int paradec_write(const Stack* stack, const Linear* projection, const Rules* rules, const Writing* to,
                      const Chunk* first, const Store* own, const Store* source, int threads) try {
    return write(*stack, *projection, *rules, *to, *first, *own, source, working(threads)) ? 0 : 2;
} catch (const std::bad_alloc&) {
    return 1;
}

// Extend the hypotheses of a beam search by one step.
API int paradec_extend(const Step* step, const Extended* ended, const Extended* alive) try {
    extend(*step, *ended, *alive);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Search a batch whose source has been put; null if memory is short.
API Resumable* paradec_search_new(const Searcher* model, const Rules* rules, const Search* to) try {
    return new BeamSearch(*model, *rules, *to, work);
} catch (const std::bad_alloc&) {
    return nullptr;
}

// Search with drafts by a second model, or by other weights of the first (`joined`).
API Resumable* paradec_search_drafts_new(const Searcher* verifier, const Searcher* drafter, const Rules* rules,
                                         const Search* to, const Drafting* how) try {
    return new DraftedSearch(*verifier, *drafter, *rules, *to, *how);
} catch (const std::bad_alloc&) {
    return nullptr;
}

// Go on until the search has ended, or for a while; see `Returned`.
API int paradec_search_run(Resumable* search, int milliseconds, int threads) try {
    return search->run(Deadline(milliseconds), working(threads));
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}

API void paradec_search_free(Resumable* search) {
    search->give_back(work);
    delete search;
}

// Decode a batch by drafts; see DraftLoop.
API DraftLoop* paradec_drafts_new(const Drafted* how, const Rules* rules) try {
    return new DraftLoop(*how, *rules);
} catch (const std::bad_alloc&) {
    return nullptr;
}

API void paradec_drafts_free(DraftLoop* loop) { delete loop; }

// Let a sentence enter; its number, or -1 if memory is short.
API int paradec_drafts_add(DraftLoop* loop, const Entry* entry) try {
    return loop->add(*entry);
} catch (const std::bad_alloc&) {
    return -1;
}

// Go on until one of `Returned` happens; drafter: null if what drafts is no model.
API int paradec_drafts_run(DraftLoop* loop, const Reader* verifier, const Reader* drafter, const Until* until, int threads) try {
    static const Reader none{};
    return loop->run(*verifier, drafter == nullptr ? none : *drafter, *until, working(threads));
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}

// The slots that each row of a cache needs before the next round.
API int paradec_drafts_slots(const DraftLoop* loop) { return loop->slots(); }

API void paradec_drafts_written(const DraftLoop* loop, int number, Written* written) { *written = loop->written(number); }
