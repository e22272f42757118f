// Linear maps with weights in panels, and their products with a few rows.
//
// A weight W, outputs x inputs, is packed once into panels, inputs x PANEL outputs. A product reads
// each panel once for all rows of a block, as many as registers hold; a block's inputs are packed in
// the same way. So reading the weights is the lower bound of a product of few rows.
//
// With tiles, bf16's products of any number of rows take them, so that all have one order of sums;
// int8's, whose sums are exact, from TILE_FROM rows on.
//
// Forms: fp32; bf16 (weights, and with AVX512_BF16 also inputs); int8 (weights scaled by output,
// inputs by row); for drafts int4 and int2 (with VNNI: weights of so many bits, two or four in a byte,
// scaled by output and SPAN inputs, inputs of 8 bits; elsewhere int8). Sums are fp32; of int8 and of a
// span on x86 with AVX2 or more int32.
#pragma once


#include <cstdlib>
#include <memory>
#include <type_traits>
#include <vector>

#include "pool.h"
#include "tiles.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr int PANEL = 2 * LANES;
// Rows in registers: 32 registers hold 28 sums, 16 hold 12, besides 2 weights and an input.
#if defined(__AVX512F__) || defined(__aarch64__)
#define WIDE_BLOCK 1
#else
#define WIDE_BLOCK 0
#endif
constexpr int BLOCK = WIDE_BLOCK ? 14 : 6;
constexpr int PANEL_ALIGN = 64;  // bytes
// int8: a row whose numbers are all smaller counts as zeros; 127 over them could be infinite.
constexpr float SMALLEST_PEAK = 1e-35f;

enum class Form : int { fp32 = 0, bf16 = 1, int8 = 2, int4 = 3, int2 = 4 };
enum class Activation : int { none = 0, relu, gelu, gelu_tanh, tanh, silu, relu_squared };

#if defined(__AVX512BF16__)
constexpr int BF16_GROUP = 2;  // adjacent inputs of an output
#else
constexpr int BF16_GROUP = 1;
#endif
#if defined(__AVX512VNNI__)
constexpr int INT8_GROUP = 4;
#elif defined(__AVX2__)
constexpr int INT8_GROUP = 2;
#else
constexpr int INT8_GROUP = 1;
#endif
// A weight of 4 bits is a number from -8 to 7 times a step, one of 2 bits -3, -1, 1 or 3 times a step. They are numbered
// from 0 on. A byte has the numbers of as many adjacent groups of inputs as fit, the first in the lowest bits. A span
// of inputs of a panel's outputs is their steps, in bfloat16, and these bytes.
constexpr bool HALVES = INT8_GROUP == 4;
constexpr int SPAN = 64, SPAN_STEPS = 2 * PANEL;  // inputs; bytes
constexpr int span_bytes(int bits) { return SPAN_STEPS + SPAN * PANEL * bits / 8; }

#if TILES
constexpr int TILE_FROM = 4;  // rows; fewer are read as fast without
static_assert(PANEL == 32 && BF16_GROUP == 2 && INT8_GROUP == 4, "a panel's groups are rows of tiles");
#endif

struct Free {
    bool owned = true;  // false: it lies in a mapped file
    void operator()(void* memory) const {
        if (owned) std::free(memory);
    }
};
template <class T>
using Memory = std::unique_ptr<T[], Free>;

// Zeros, aligned.
template <class T>
Memory<T> allocate(size_t count) {
    const size_t bytes = (std::max<size_t>(count, 1) * sizeof(T) + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN;
    void* memory = std::aligned_alloc(PANEL_ALIGN, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, bytes);
    return Memory<T>((T*)memory);
}

// Memory that is kept for later calls; what it holds is undefined.
struct Room {
    Memory<float> memory;
    size_t size = 0;
    float* of(size_t count) {
        if (count > size) {
            void* more = std::aligned_alloc(PANEL_ALIGN, (count * sizeof(float) + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN);
            if (more == nullptr) throw std::bad_alloc();
            memory.reset((float*)more);
            size = count;
        }
        return memory.get();
    }
};

struct Linear {
    int outputs = 0, inputs = 0, panels = 0, grouped = 0;  // grouped: inputs, in whole groups
    Form form = Form::fp32;
    Memory<char> packed;
    Memory<float> bias;       // panels * PANEL
    Memory<float> scales;     // int8: of each output
    Memory<int32_t> offsets;  // int8 with unsigned inputs: 128 times the sum of an output's weights
    const Linear* exact = nullptr;  // of spans, or null: the map in int8 that the largest outputs are taken from

    int width() const { return panels * PANEL; }
    size_t bytes() const;
};

// The bits of a form's weights that lie in spans; 0: they do not.
inline int span_bits(Form form) { return form == Form::int4 ? 4 : form == Form::int2 ? 2 : 0; }

inline int group_of(Form form) {
    return form == Form::bf16 ? BF16_GROUP : form == Form::fp32 ? 1 : INT8_GROUP;
}

// Whether a product of so many rows takes tiles.
inline bool takes_tiles(Form form, int rows) {
#if TILES
    return form == Form::bf16 || (form == Form::int8 && rows >= TILE_FROM);
#else
    return (void)form, (void)rows, false;
#endif
}

// The bytes of so many packed weights.
inline size_t bytes_of(Form form, size_t weights) {
    switch (form) {
        case Form::fp32: return weights * 4;
        case Form::bf16: return weights * 2;
        case Form::int8: return weights;
        default: return weights / (SPAN * PANEL) * span_bytes(span_bits(form));
    }
}

inline size_t Linear::bytes() const { return bytes_of(form, (size_t)width() * grouped) + (size_t)width() * 4; }

// A map of this size and form, without its numbers.
inline Linear shape(int outputs, int inputs, Form form) {
    Linear map;
    if (span_bits(form) > 0 && !HALVES) form = Form::int8;
    int group = span_bits(form) > 0 ? SPAN : group_of(form);
#if TILES
    if (form == Form::bf16 || form == Form::int8) group *= TILE_ROWS;
#endif
    map.outputs = outputs;
    map.inputs = inputs;
    map.panels = (outputs + PANEL - 1) / PANEL;
    map.grouped = (inputs + group - 1) / group * group;
    map.form = form;
    return map;
}

// Call part(memory, bytes) for each part of a packed map, in the order of a file.
template <class Part>
inline void each_part(Linear& map, const Part& part) {
    part(map.packed, bytes_of(map.form, (size_t)map.width() * map.grouped));
    part(map.bias, (size_t)map.width() * sizeof(float));
    if (map.form == Form::int8) part(map.scales, (size_t)map.width() * sizeof(float));
    if (map.form == Form::int8) part(map.offsets, (size_t)map.width() * sizeof(int32_t));
}

inline size_t aligned(size_t bytes) { return (bytes + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN; }

// How many bytes a packed map takes in a file.
inline size_t bytes_in_file(int outputs, int inputs, Form form) {
    Linear map = shape(outputs, inputs, form);
    size_t total = 0;
    each_part(map, [&](auto&, size_t bytes) { total += aligned(bytes); });
    return total;
}

inline void write_to_file(Linear& map, char* to) {
    each_part(map, [&](auto& memory, size_t bytes) {
        std::memcpy(to, memory.get(), bytes);
        to += aligned(bytes);
    });
}

// A map whose numbers lie in a mapped file, which must outlive it.
inline Linear from_file(char* from, int outputs, int inputs, Form form) {
    Linear map = shape(outputs, inputs, form);
    each_part(map, [&](auto& memory, size_t bytes) {
        using T = std::remove_reference_t<decltype(memory[0])>;
        memory = Memory<T>((T*)from, Free{false});
        from += aligned(bytes);
    });
    return map;
}

// The number of a weight, from 0 on, and what it stands for; both in steps.
template <int BITS>
inline vfloat number_of(vfloat steps) {
    const vfloat number = BITS == 4 ? steps + 8 : steps * 0.5f + 1.5f, last = splat((1 << BITS) - 1);
    const vfloat whole = __builtin_convertvector((vint)nearest(number), vfloat);
    return whole < vfloat{} ? vfloat{} : whole > last ? last : whole;
}
template <int BITS>
inline vfloat steps_of(vfloat number) { return BITS == 4 ? number - 8 : 2 * number - 3; }

// Pack an output's weights of a span. Of eight steps, which cut off the largest weights more and more, it takes the one
// with the least error; NaN if a weight is.
template <int BITS>
inline void pack_span(const float* row, int count, int column, char* span) {
    float weights[SPAN] = {}, peak = 0, odd = 0;
    std::copy_n(row, count, weights);
    for (int i = 0; i < SPAN; ++i) peak = std::max(peak, std::fabs(weights[i])), odd += 0 * weights[i];
    const auto each = [&](float step, const auto& take) {
        const float inverse = peak < SMALLEST_PEAK || odd != odd ? 0 : 1 / step;
        for (int i = 0; i < SPAN; i += LANES) take(i, number_of<BITS>(load(weights + i) * inverse));
    };
    float step = 0, least = INFINITY;
    for (int cut = 0; cut < 8 && peak >= SMALLEST_PEAK; ++cut) {
        const float part = BITS == 4 ? (1 - 0.05f * cut) / 7 : 0.3f - 0.03f * cut;
        const float tried = from_bfloat16(to_bfloat16(peak * part));
        vfloat errors{};
        each(tried, [&](int i, vfloat number) {
            vfloat error = steps_of<BITS>(number) * tried - load(weights + i);
            for (int j = 0; j < LANES; ++j) error[j] = i + j < count ? error[j] : 0;
            errors += error * error;
        });
        if (sum(errors) < least) least = sum(errors), step = tried;
    }
    ((uint16_t*)span)[column] = to_bfloat16(step + odd);
    each(step, [&](int first, vfloat number) {
        for (int j = 0; j < LANES && first + j < count; ++j) {
            constexpr int TOGETHER = 8 / BITS;  // groups in a byte
            const int i = first + j, group = i / INT8_GROUP;
            char& byte = span[SPAN_STEPS + (group / TOGETHER * PANEL + column) * INT8_GROUP + i % INT8_GROUP];
            byte = (char)((uint8_t)byte | (int)number[j] << group % TOGETHER * BITS);
        }
    });
}

// Pack a weight, outputs x inputs (row by row), and a bias (or null).
inline Linear pack(const float* weight, const float* bias, int outputs, int inputs, Form form) {
    Linear map = shape(outputs, inputs, form);
    form = map.form;
    const int group = group_of(form);
    map.packed = allocate<char>(bytes_of(form, (size_t)map.width() * map.grouped));
    map.bias = allocate<float>(map.width());
    if (bias != nullptr) std::memcpy(map.bias.get(), bias, outputs * sizeof(float));
    if (form == Form::int8) map.scales = allocate<float>(map.width()), map.offsets = allocate<int32_t>(map.width());
    for (int o = 0; o < outputs; ++o) {
        const float* row = weight + (size_t)o * inputs;
        if (const int bits = span_bits(form)) {
            char* panel = map.packed.get() + o / PANEL * bytes_of(form, (size_t)map.grouped * PANEL);
            for (int first = 0; first < inputs; first += SPAN, panel += span_bytes(bits)) {
                const auto pack = bits == 4 ? pack_span<4> : pack_span<2>;
                pack(row + first, std::min(SPAN, inputs - first), o % PANEL, panel);
            }
            continue;
        }
        float peak = 0;
        for (int i = 0; i < inputs; ++i) peak = std::max(peak, std::fabs(row[i]));
        float scale = peak >= SMALLEST_PEAK ? peak / 127 : 1;
        for (int i = 0; i < inputs; ++i) scale += 0 * row[i];  // NaN, if one weight is
        int32_t total = 0;
        for (int i = 0; i < inputs; ++i) {
            const size_t panel = (size_t)(o / PANEL) * map.grouped * PANEL;
            const size_t at = panel + (size_t)(i / group) * PANEL * group + (o % PANEL) * group + i % group;
            if (form == Form::fp32) {
                ((float*)map.packed.get())[at] = row[i];
            } else if (form == Form::bf16) {
                ((uint16_t*)map.packed.get())[at] = to_bfloat16(row[i]);
            } else {
                const int value = scale == scale ? std::clamp((int)std::lrintf(row[i] / scale), -127, 127) : 0;
                total += value;
                ((int8_t*)map.packed.get())[at] = (int8_t)value;
            }
        }
        if (form == Form::int8) {
            map.scales[o] = scale;
            map.offsets[o] = INT8_GROUP == 4 ? 128 * total : 0;
        }
    }
    return map;
}

// A map in spans with the same memory, which must outlive it, as `exact` must: a map of the same weights in int8.
inline Linear with_exact(const Linear& map, const Linear& exact) {
    Linear both = shape(map.outputs, map.inputs, map.form);
    both.packed = Memory<char>(map.packed.get(), Free{false});
    both.bias = Memory<float>(map.bias.get(), Free{false});
    both.exact = &exact;
    return both;
}

// The inputs of a product. For dot products they are laid out in blocks of rows, in each the rows'
// inputs side by side.
struct Inputs {
    int rows = 0;
    std::vector<int> first;         // the first row of each block; last, the number of rows
    const float* values = nullptr;  // without dot products: the caller's rows, or `rounded`
    int stride = 0;                 // of these
    std::vector<float> rounded;     // int8: rows x inputs
    std::vector<uint32_t> words;    // of two bfloat16, two int16 or four bytes
    int height = 0;                 // of a tile, in which a row's words lie behind each other; 0: no tiles
    uint32_t* lines = nullptr;      // the first of these, aligned
    std::vector<float> scales;      // int8, spans: of each row
    std::vector<int32_t> totals;    // spans: of each row and span, the sum of its inputs
};

// The largest magnitude of a row; NaN if the row has a NaN or an infinity.
inline float peak_of(const float* row, int count) {
    vfloat top{}, odd{};
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vfloat x = load(row + i);
        top = larger(magnitude(x), top);
        odd += x * 0.0f;
    }
    float peak = largest(top), strange = sum(odd);
    for (; i < count; ++i) {
        peak = std::max(peak, std::fabs(row[i]));
        strange += row[i] * 0.0f;
    }
    return peak + strange;
}

// Write a row's inputs as 32-bit words, `step` apart, of the numbers that `narrow` makes of them.
template <class Narrow>
inline void write_words(const float* row, int count, int step, uint32_t* to, const Narrow& narrow) {
    float tail[LANES] = {};
    for (int i = 0; i < count; i += LANES) {
        const bool whole = i + LANES <= count;
        if (!whole) std::memcpy(tail, row + i, (count - i) * sizeof(float));
        const auto small = narrow(load(whole ? row + i : tail));
        constexpr int GROUP = 4 * LANES / sizeof(small), WORDS = LANES / GROUP;
        uint32_t words[WORDS];
        std::memcpy(words, &small, sizeof(small));
        const int used = std::min(WORDS, (count - i + GROUP - 1) / GROUP);
        for (int w = 0; w < used; ++w, to += step) *to = words[w];
    }
}

inline void lay_out(Inputs& in, const Linear& map, const float* x, int stride, int rows) {
    const bool dots = group_of(map.form) > 1, tiles = takes_tiles(map.form, rows);
#if TILES
    const int most = tiles ? TILE_ROWS : BLOCK;
#else
    const int most = BLOCK;
#endif
    const int blocks = (rows + most - 1) / most, inputs = map.inputs;
    const int groups = map.grouped / group_of(map.form), spans = span_bits(map.form) > 0 ? map.grouped / SPAN : 0;
    in.rows = rows;
    in.totals.assign((size_t)rows * spans, 0);
    in.height = tiles ? (rows + blocks - 1) / blocks : 0;
    in.first.resize(blocks + 1);
    for (int b = 0; b <= blocks; ++b) in.first[b] = (int)((long)rows * b / blocks);
    const bool in_spans = span_bits(map.form) > 0, whole = map.form == Form::int8 || in_spans;
    if (whole) in.scales.resize(rows);
    in.values = x;
    in.stride = stride;
    if (!dots && !whole) return;
    if (dots) {
        // Room to align lines of the CPU's cache.
        in.words.resize((size_t)std::max(rows, blocks * in.height) * groups + 16);
        in.lines = (uint32_t*)(((uintptr_t)in.words.data() + 63) / 64 * 64);
    } else {
        in.rounded.resize((size_t)rows * inputs);
        in.values = in.rounded.data();
        in.stride = inputs;
    }
    for (int b = 0; b < blocks; ++b) {
        const int first = in.first[b], count = in.first[b + 1] - first;
        for (int r = 0; r < count; ++r) {
            const float* row = x + (size_t)(first + r) * stride;
            uint32_t* to = in.lines + (size_t)first * groups + r;
            int step = count;
            if (tiles) {
                to = in.lines + (size_t)(b * in.height + r) * groups, step = 1;
                const int used = (inputs + group_of(map.form) - 1) / group_of(map.form);
                std::fill(to + used, to + groups, 0);
            }
            if (map.form == Form::bf16) {
                write_words(row, inputs, step, to, [](vfloat v) { return to_bfloat16(v); });
                continue;
            }
            const float peak = peak_of(row, inputs), inverse = peak >= SMALLEST_PEAK ? 127 / peak : 0;
            in.scales[first + r] = peak / 127;
            if (in_spans) {
                int32_t* totals = in.totals.data() + (size_t)(first + r) * spans;
                int done = 0;
                write_words(row, inputs, step, to, [&](vfloat v) {
                    const vint near = (vint)nearest(v * inverse);
                    for (int i = 0; i < LANES; ++i) totals[done / SPAN] += near[i];
                    done += LANES;
                    return __builtin_convertvector((vuint)near & 255, vubyte);
                });
            } else if (INT8_GROUP == 4) {  // 128 more, so that none is negative
                write_words(row, inputs, step, to, [=](vfloat v) {
                    return __builtin_convertvector((nearest(v * inverse) + 128) & 255, vubyte);
                });
            } else if (dots) {
                write_words(row, inputs, step, to, [=](vfloat v) {
                    return __builtin_convertvector(nearest(v * inverse), vhalf);
                });
            } else {
                float* rounded = in.rounded.data() + (size_t)(first + r) * inputs;
                for (int i = 0; i < inputs; ++i) rounded[i] = std::nearbyintf(row[i] * inverse);
            }
        }
    }
}

[[gnu::noinline]] inline vfloat activate(vfloat x, Activation kind) {
    switch (kind) {
        case Activation::none: return x;
        case Activation::relu: return x < vfloat{} ? vfloat{} : x;
        case Activation::relu_squared: x = x < vfloat{} ? vfloat{} : x; return x * x;
        case Activation::silu: return x / (1.0f + exp(-x));
        default: break;
    }
    for (int i = 0; i < LANES; ++i) {
        const float v = x[i];
        x[i] = kind == Activation::tanh ? std::tanh(v)
             : kind == Activation::gelu ? 0.5f * v * (1 + std::erf(v * 0.70710678118654752f))
             : 0.5f * v * (1 + std::tanh(0.79788456080286536f * (v + 0.044715f * v * v * v)));
    }
    return x;
}

// What a block reads, a step of its sums after the other, and what it prefetches meanwhile: with few rows, reading takes
// as long as computing.
template <int PANELS>
struct Reads {
    const char* panels[PANELS];  // of weights
    const char* ahead[PANELS];   // the next lines to prefetch
    int step;                    // bytes of `ahead` that a step passes
    // Prefetch, and return the panel's part for a step of `bytes`.
    template <class W>
    const W* next(int p, int bytes) {
        for (int more = 0; more < 2 * LANES * 4; more += 64) __builtin_prefetch(ahead[p] + more);
        ahead[p] += step;
        const char* part = panels[p];
        panels[p] += bytes;
        return (const W*)part;
    }
    // The same of a step of many lines, which is prefetched by the caller: the part, and where the lines to prefetch are.
    std::pair<const char*, const char*> next_lines(int p, int bytes) {
        const std::pair parts(panels[p], ahead[p]);
        panels[p] += bytes, ahead[p] += step;
        return parts;
    }
};

// Sums of rows with panels.
template <class V, int PANELS, int ROWS>
struct Sums {
    V of[PANELS][ROWS][2];
    auto& operator[](int panel) { return of[panel]; }
};

// The sums of ROWS rows with PANELS panels, over floats, pairs of bfloat16, or pairs or fours of bytes. A row's sum has
// the same terms in the same order for any number of rows and panels, so a token's scores do not depend on its chunk.
template <class W, int ROWS, int PANELS>
inline void add_up(Reads<PANELS> reads, const float* x, int stride, int inputs, Sums<vfloat, PANELS, ROWS>& to) {
    Sums<vfloat, PANELS, ROWS> sums = to;  // in registers
    const float* rows[ROWS];
    for (int r = 0; r < ROWS; ++r) rows[r] = x + (size_t)r * stride;
    for (int i = 0; i < inputs; ++i) {
        for (int p = 0; p < PANELS; ++p) {
            const W* weight = reads.template next<W>(p, PANEL * sizeof(W));
            const vfloat a = load(weight), b = load(weight + LANES);
            for (int r = 0; r < ROWS; ++r) {
                sums[p][r][0] += rows[r][i] * a;
                sums[p][r][1] += rows[r][i] * b;
            }
        }
    }
    to = sums;
}

#if defined(__AVX512BF16__)
template <int ROWS, int PANELS>
inline void add_up_pairs(Reads<PANELS> reads, const uint32_t* x, int groups, Sums<vfloat, PANELS, ROWS>& to) {
    Sums<vfloat, PANELS, ROWS> sums = to;  // in registers
    for (int g = 0; g < groups; ++g, x += ROWS) {
        for (int p = 0; p < PANELS; ++p) {
            const uint16_t* weight = reads.template next<uint16_t>(p, 4 * PANEL);
            const __m512bh a = (__m512bh)_mm512_loadu_si512(weight);
            const __m512bh b = (__m512bh)_mm512_loadu_si512(weight + PANEL);
            for (int r = 0; r < ROWS; ++r) {
                const __m512bh both = (__m512bh)_mm512_set1_epi32((int)x[r]);
                sums[p][r][0] = (vfloat)_mm512_dpbf16_ps((__m512)sums[p][r][0], both, a);
                sums[p][r][1] = (vfloat)_mm512_dpbf16_ps((__m512)sums[p][r][1], both, b);
            }
        }
    }
    to = sums;
}
#endif
#if defined(__AVX512VNNI__)
template <int ROWS, int PANELS>
inline void add_up_bytes(Reads<PANELS> reads, const uint32_t* x, int groups, Sums<vint, PANELS, ROWS>& to) {
    Sums<vint, PANELS, ROWS> sums = to;  // in registers
    for (int g = 0; g < groups; ++g, x += ROWS) {
        for (int p = 0; p < PANELS; ++p) {
            const char* weight = reads.template next<char>(p, 4 * PANEL);
            const __m512i a = _mm512_loadu_si512(weight), b = _mm512_loadu_si512(weight + 2 * PANEL);
            for (int r = 0; r < ROWS; ++r) {
                const __m512i four = _mm512_set1_epi32((int)x[r]);
                sums[p][r][0] = (vint)_mm512_dpbusd_epi32((__m512i)sums[p][r][0], four, a);
                sums[p][r][1] = (vint)_mm512_dpbusd_epi32((__m512i)sums[p][r][1], four, b);
            }
        }
    }
    to = sums;
}
// As the function above, over spans; a byte of the weights has the numbers of several groups, and inputs have signs.
// Sums of a span are whole numbers. totals: rows x all spans, from the first of these spans on.
template <int BITS, int ROWS, int PANELS>
inline void add_up_spans(Reads<PANELS> reads, const uint32_t* x, int spans, const int32_t* totals, int all, Sums<vfloat, PANELS, ROWS>& to) {
    constexpr int TOGETHER = 8 / BITS, STEP = 4 * PANEL, STEPS = SPAN / (TOGETHER * INT8_GROUP);  // groups; bytes
    const __m512i low = _mm512_set1_epi8((1 << BITS) - 1);
    for (int span = 0; span < spans; ++span, x += STEPS * TOGETHER * ROWS) {
        for (int p = 0; p < PANELS; ++p) {
            const auto [part, ahead] = reads.next_lines(p, span_bytes(BITS));
            Sums<vint, 1, ROWS> sums{};  // in registers
            const uint32_t* inputs = x;
            for (int step = 0; step < STEPS; ++step, inputs += TOGETHER * ROWS) {
                for (int line = step * STEP; line < (step + 1) * STEP && line < reads.step; line += 64) {
                    __builtin_prefetch(ahead + line);
                }
                const char* weight = part + SPAN_STEPS + step * STEP;
                const __m512i a = _mm512_loadu_si512(weight), b = _mm512_loadu_si512(weight + STEP / 2);
#pragma GCC unroll 4
                for (int piece = 0; piece < TOGETHER; ++piece) {
                    const __m512i left = _mm512_and_si512(_mm512_srli_epi16(a, piece * BITS), low);
                    const __m512i right = _mm512_and_si512(_mm512_srli_epi16(b, piece * BITS), low);
                    for (int r = 0; r < ROWS; ++r) {
                        const __m512i four = _mm512_set1_epi32((int)inputs[piece * ROWS + r]);
                        sums[0][r][0] = (vint)_mm512_dpbusd_epi32((__m512i)sums[0][r][0], left, four);
                        sums[0][r][1] = (vint)_mm512_dpbusd_epi32((__m512i)sums[0][r][1], right, four);
                    }
                }
            }
            const vfloat steps[] = {load((const uint16_t*)part), load((const uint16_t*)part + LANES)};
            for (int r = 0; r < ROWS; ++r) {
                const int total = totals[(size_t)r * all + span];
                for (int h = 0; h < 2; ++h) {
                    // The sum of `steps_of` all numbers.
                    const vint whole = BITS == 4 ? sums[0][r][h] - 8 * total : 2 * sums[0][r][h] - 3 * total;
                    const __m512 added = (__m512)__builtin_convertvector(whole, vfloat);
                    to[p][r][h] = (vfloat)_mm512_fmadd_ps(added, (__m512)steps[h], (__m512)to[p][r][h]);
                }
            }
        }
    }
}
#elif defined(__AVX2__)
#if defined(__AVX512BW__)
typedef __m512i Pairs;  // of int16
inline Pairs pairs_of(const int8_t* from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from)); }
inline vint dot(Pairs a, uint32_t pair) { return (vint)_mm512_madd_epi16(a, _mm512_set1_epi32((int)pair)); }
#else
typedef __m256i Pairs;
inline Pairs pairs_of(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)); }
inline vint dot(Pairs a, uint32_t pair) { return (vint)_mm256_madd_epi16(a, _mm256_set1_epi32((int)pair)); }
#endif
template <int ROWS, int PANELS>
inline void add_up_bytes(Reads<PANELS> reads, const uint32_t* x, int groups, Sums<vint, PANELS, ROWS>& to) {
    Sums<vint, PANELS, ROWS> sums = to;  // in registers
    for (int g = 0; g < groups; ++g, x += ROWS) {
        for (int p = 0; p < PANELS; ++p) {
            const int8_t* weight = reads.template next<int8_t>(p, 2 * PANEL);
            const Pairs a = pairs_of(weight), b = pairs_of(weight + PANEL);
            for (int r = 0; r < ROWS; ++r) {
                sums[p][r][0] += dot(a, x[r]);
                sums[p][r][1] += dot(b, x[r]);
            }
        }
    }
    to = sums;
}
#endif

struct Output {
    float* to;
    int stride;
    const float* add = nullptr;  // added to it, with the same stride (a residual)
    Activation activation = Activation::none;
};

// Finish one row's sums with a panel: bias, activation, residual.
[[gnu::always_inline]] inline void put_sums(const Linear& map, int panel, int row, const vfloat (&sums)[2], const Output& out) {
    const int column = panel * PANEL, left = map.outputs - column;
    const size_t start = (size_t)row * out.stride + column;
    for (int h = 0; h < 2; ++h) {
        const int at = h * LANES, count = std::min(LANES, left - at);
        if (count <= 0) break;
        vfloat value = sums[h] + load(map.bias.get() + column + at);
        if (out.activation != Activation::none) value = activate(value, out.activation);
        if (count == LANES) {
            if (out.add != nullptr) value += load(out.add + start + at);
            store(out.to + start + at, value);
        } else {
            for (int i = 0; i < count; ++i) {
                out.to[start + at + i] = value[i] + (out.add == nullptr ? 0 : out.add[start + at + i]);
            }
        }
    }
}

// Add up panels in two parts, of `steps` steps with so many bytes of a panel each: add(reads, first step, steps).
template <int PANELS, class Add>
[[gnu::always_inline]] inline void in_two_parts(const Linear& map, int panel, const Inputs& in, int block, int steps, int step, const Add& add) {
    const size_t bytes = bytes_of(map.form, (size_t)PANEL * map.grouped);
    Reads<PANELS> reads;
    reads.step = step;
    // A panel alone prefetches 8 KB ahead (measured: 1 to 4 KB and 16 KB are slower), several 2 KB each.
    for (int p = 0; p < PANELS; ++p) {
        reads.panels[p] = map.packed.get() + (panel + p) * bytes;
        reads.ahead[p] = reads.panels[p] + (PANELS > 1 ? 2048 : 8192);
    }
    // Of several blocks, the first two prefetch a half of the next panel each, so that reading spreads over both.
    if (PANELS == 1 && in.first.size() > 2) {
        const char* next = reads.panels[0] + bytes;
        reads.ahead[0] = next + std::min(block, 1) * ((long)bytes / 2);
        reads.step = block < 2 ? step / 2 : 0;
    }
    if (PANELS == 1) return add(reads, 0, steps);
    const int last = std::min(steps, 2048 / step);
    add(reads, 0, steps - last);
    for (int p = 0; p < PANELS; ++p) {
        reads.panels[p] += (size_t)(steps - last) * step;
        reads.ahead[p] = reads.panels[0] + (PANELS - 1 + p) * bytes + last * step;  // where the next ones begin
    }
    add(reads, steps - last, last);
}

#if defined(__AVX512VNNI__)
// As `multiply_block`, of weights in spans.
template <int BITS, int ROWS, int PANELS>
[[gnu::noinline]] inline void multiply_spans(const Linear& map, int panel, const Inputs& in, int block, const Output& out) {
    const int first = in.first[block], spans = map.grouped / SPAN;
    const int32_t* totals = in.totals.data() + (size_t)first * spans;
    const uint32_t* lines = in.lines + (size_t)first * (map.grouped / INT8_GROUP);
    Sums<vfloat, PANELS, ROWS> sums = {};
    in_two_parts<PANELS>(map, panel, in, block, spans, span_bytes(BITS), [&](const Reads<PANELS>& reads, int from, int count) {
        const uint32_t* inputs = lines + (size_t)from * (SPAN / INT8_GROUP) * ROWS;
        add_up_spans<BITS, ROWS, PANELS>(reads, inputs, count, totals + from, spans, sums);
    });
    for (int p = 0; p < PANELS; ++p) {
        for (int r = 0; r < ROWS; ++r) {
            for (int h = 0; h < 2; ++h) sums[p][r][h] *= in.scales[first + r];
            put_sums(map, panel + p, first + r, sums[p][r], out);
        }
    }
}
#endif

// A block of rows with PANELS panels, from one on. A row alone takes several at once: their sums do not wait for each
// other, and more of the memory's lines are on the way.
template <int ROWS, int PANELS>
inline void multiply_block(const Linear& map, int panel, const Inputs& in, int block, const Output& out) {
#if defined(__AVX512VNNI__)
    if (map.form == Form::int4) return multiply_spans<4, ROWS, PANELS>(map, panel, in, block, out);
    if (map.form == Form::int2) return multiply_spans<2, ROWS, PANELS>(map, panel, in, block, out);
#endif
    const int first = in.first[block];
    const auto in_parts = [&](int steps, int step, const auto& add) { in_two_parts<PANELS>(map, panel, in, block, steps, step, add); };
    Sums<vfloat, PANELS, ROWS> sums = {};
    const float* values = in.values + (size_t)first * in.stride;
    const auto add_values = [&](auto weight) {
        using W = decltype(weight);
        in_parts(map.inputs, PANEL * sizeof(W), [&](const Reads<PANELS>& reads, int from, int count) {
            add_up<W, ROWS, PANELS>(reads, values + from, in.stride, count, sums);
        });
    };
    if (map.form == Form::fp32) {
        add_values(float{});
    } else if (map.form == Form::bf16) {
#if defined(__AVX512BF16__)
        const int groups = map.grouped / 2;
        const uint32_t* lines = in.lines + (size_t)first * groups;
        in_parts(groups, 4 * PANEL, [&](const Reads<PANELS>& reads, int from, int count) {
            add_up_pairs<ROWS, PANELS>(reads, lines + (size_t)from * ROWS, count, sums);
        });
#else
        add_values(uint16_t{});
#endif
    } else {
#if defined(__AVX2__)
        Sums<vint, PANELS, ROWS> whole;
        const int groups = map.grouped / INT8_GROUP;
        const uint32_t* lines = in.lines + (size_t)first * groups;
        for (int p = 0; p < PANELS; ++p) {
            const vint* offsets = (const vint*)(map.offsets.get() + (panel + p) * PANEL);
            for (int r = 0; r < ROWS; ++r) whole[p][r][0] = -offsets[0], whole[p][r][1] = -offsets[1];
        }
        in_parts(groups, INT8_GROUP * PANEL, [&](const Reads<PANELS>& reads, int from, int count) {
            add_up_bytes<ROWS, PANELS>(reads, lines + (size_t)from * ROWS, count, whole);
        });
        for (int p = 0; p < PANELS; ++p) {
            for (int r = 0; r < ROWS; ++r) {
                for (int h = 0; h < 2; ++h) sums[p][r][h] = __builtin_convertvector(whole[p][r][h], vfloat);
            }
        }
#else
        add_values(int8_t{});
#endif
        for (int p = 0; p < PANELS; ++p) {
            const float* scales = map.scales.get() + (panel + p) * PANEL;
            for (int r = 0; r < ROWS; ++r) {
                for (int h = 0; h < 2; ++h) sums[p][r][h] *= in.scales[first + r] * load(scales + h * LANES);
            }
        }
    }
    for (int p = 0; p < PANELS; ++p) {
        for (int r = 0; r < ROWS; ++r) put_sums(map, panel + p, first + r, sums[p][r], out);
    }
}

#if TILES
// A panel's products with all rows, by tiles; they are configured.
inline void multiply_tiles(const Linear& map, int panel, const Inputs& in, const Output& out) {
    alignas(64) int32_t sums[2 * TILE_ROWS * PANEL];
    const char* weight = map.packed.get() + panel * bytes_of(map.form, (size_t)PANEL * map.grouped);
    const int groups = map.grouped / group_of(map.form), blocks = (int)in.first.size() - 1;
    const size_t bytes = (size_t)groups * 4;
    for (int b = 0; b < blocks; b += 2) {
        const char* inputs = (const char*)(in.lines + (size_t)b * in.height * groups);
        const bool both = b + 1 < blocks;
        const auto add = map.form == Form::int8 ? (both ? add_up_tiles<true, true> : add_up_tiles<true, false>)
                                                : (both ? add_up_tiles<false, true> : add_up_tiles<false, false>);
        add(weight, inputs, bytes, in.height * bytes, b == 0, sums);
        for (int half = 0; half <= (int)both; ++half) {
            const int first = in.first[b + half], count = in.first[b + half + 1] - first;
            for (int r = 0; r < count; ++r) {
                const int32_t* row = sums + (half * TILE_ROWS + r) * PANEL;
                vfloat found[2];
                for (int h = 0; h < 2; ++h) {
                    if (map.form == Form::bf16) {
                        found[h] = load_as<vfloat>(row + h * LANES);
                        continue;
                    }
                    const size_t column = (size_t)panel * PANEL + h * LANES;
                    const vint whole = load_as<vint>(row + h * LANES) - load_as<vint>(map.offsets.get() + column);
                    found[h] = __builtin_convertvector(whole, vfloat);
                    found[h] *= in.scales[first + r] * load(map.scales.get() + column);
                }
                put_sums(map, panel, first + r, found, out);
            }
        }
    }
}
#endif

// Least number of multiplications for a second thread; the tests share less, too.
#ifndef SERIAL_WORK
#define SERIAL_WORK 100000
#endif
constexpr long SERIAL = SERIAL_WORK;

inline void product(const Linear& map, const Inputs& in, const Output& out, int threads) {
    const long work = (long)map.width() * map.inputs * in.rows;
#if TILES
    if (in.height > 0) {
        const int parts = work > SERIAL ? threads : 1;
        for_each(threads, parts, parts > 1, [&](int part, int) {
            const Tiles tiles(in.height);  // each thread has its own
            const int end = (int)((long)map.panels * (part + 1) / parts);
            for (int panel = (int)((long)map.panels * part / parts); panel < end; ++panel) multiply_tiles(map, panel, in, out);
        });
        return;
    }
#endif
    // A panel of spans alone is read faster than several (measured on Zen 4: 0.8 of the time).
    if (in.rows == 1 && span_bits(map.form) == 0) {
        constexpr int TOGETHER = 4;
        const int groups = (map.panels + TOGETHER - 1) / TOGETHER;
        for_each(threads, groups, work > SERIAL, [&](int group, int) {
            int panel = group * TOGETHER;
            const int end = std::min(panel + TOGETHER, map.panels);
            if (end - panel == TOGETHER) return multiply_block<1, TOGETHER>(map, panel, in, 0, out);
            for (; panel < end; ++panel) multiply_block<1, 1>(map, panel, in, 0, out);
        });
        return;
    }
    for_each(threads, map.panels, work > SERIAL, [&](int panel, int) {
        for (size_t b = 0; b + 1 < in.first.size(); ++b) {
            switch (in.first[b + 1] - in.first[b]) {
                case 1: multiply_block<1, 1>(map, panel, in, b, out); break;
                case 2: multiply_block<2, 1>(map, panel, in, b, out); break;
                case 3: multiply_block<3, 1>(map, panel, in, b, out); break;
                case 4: multiply_block<4, 1>(map, panel, in, b, out); break;
                case 5: multiply_block<5, 1>(map, panel, in, b, out); break;
                case 6: multiply_block<6, 1>(map, panel, in, b, out); break;
#if WIDE_BLOCK
                case 7: multiply_block<7, 1>(map, panel, in, b, out); break;
                case 8: multiply_block<8, 1>(map, panel, in, b, out); break;
                case 9: multiply_block<9, 1>(map, panel, in, b, out); break;
                case 10: multiply_block<10, 1>(map, panel, in, b, out); break;
                case 11: multiply_block<11, 1>(map, panel, in, b, out); break;
                case 12: multiply_block<12, 1>(map, panel, in, b, out); break;
                case 13: multiply_block<13, 1>(map, panel, in, b, out); break;
                case 14: multiply_block<14, 1>(map, panel, in, b, out); break;
#endif
            }
        }
    });
}

// An output of a row in int8, from inputs with signs: words, `step` apart.
inline float output_of(const Linear& map, int output, const uint32_t* row, int step, float scale) {
    const int8_t* weight = (const int8_t*)map.packed.get() + (size_t)(output / PANEL) * map.grouped * PANEL + output % PANEL * 4;
    int32_t total = 0;
    for (int i = 0; i < map.inputs; i += 4, weight += 4 * PANEL, row += step) {
        int8_t inputs[4];
        std::memcpy(inputs, row, 4);
        for (int j = 0; j < 4; ++j) total += inputs[j] * weight[j];
    }
    return (float)total * (scale * map.scales[output]) + map.bias[output];
}

// Take a row's largest outputs from the exact map: a few at once, for the best one may look worse than it is, and then
// what is the largest, until that is an exact one.
inline void take_exact(const Linear& map, const uint32_t* row, int step, float scale, float* y) {
    constexpr int FEW = 16, MOST = 24, PARTS = 64;
    const int size = (map.outputs + PARTS - 1) / PARTS;
    float* const end = y + map.outputs;
    float peaks[PARTS];
    const auto look = [&](int part) {
        vfloat top = splat(-INFINITY);
        const float *at = std::min(y + part * size, end), *until = std::min(at + size, (const float*)end);
        for (; at + LANES <= until; at += LANES) top = larger(load(at), top);
        peaks[part] = largest(top);
        for (; at < until; ++at) peaks[part] = std::max(peaks[part], *at);
    };
    for (int part = 0; part < PARTS; ++part) look(part);
    float *taken[MOST], outputs[FEW];
    for (int count = 0; count < MOST; ++count) {
        if (count == FEW) {
            for (int i = 0; i < FEW; ++i) *taken[i] = outputs[i], look((int)(taken[i] - y) / size);
        }
        const int part = (int)(std::max_element(peaks, peaks + PARTS) - peaks);
        float *const from = std::min(y + part * size, end), *const until = std::min(from + size, end);
        float* const best = std::find(from, until, peaks[part]);
        if (best == until || std::find(taken, taken + count, best) != taken + count) {
            for (int i = 0; i < count && count < FEW; ++i) *taken[i] = outputs[i];
            return;
        }
        const float exact = output_of(*map.exact, (int)(best - y), row, step, scale);
        taken[count] = best;
        if (count < FEW) outputs[count] = exact;
        *best = count < FEW ? -INFINITY : exact;
        look(part);
    }
}

// The same of all rows; `in`: as the product has read it.
inline void take_exact(const Linear& map, const Inputs& in, const Output& out, int threads) {
    const int groups = map.grouped / group_of(map.form);
    for_each(threads, (int)in.first.size() - 1, in.rows > 1 && (long)in.rows * map.outputs > SERIAL, [&](int b, int) {
        const int first = in.first[b], count = in.first[b + 1] - first;
        for (int r = 0; r < count; ++r) {
            const uint32_t* row = in.lines + (size_t)first * groups + r;
            take_exact(map, row, count, in.scales[first + r], out.to + (size_t)(first + r) * out.stride);
        }
    });
}
