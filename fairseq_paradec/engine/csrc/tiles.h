// Matrix tiles (AMX): products of up to 32 rows with a panel, in int8 and bf16.
//
// Tiles 0 to 3 hold sums of two blocks of rows by 16 outputs, 4 and 5 inputs of the rows, 6 and 7 the two
// halves of a panel, which lies in memory as a tile reads it. Without the instructions, and with
// PARADEC_EMULATED_TILES, plain loops stand behind the same names, for tests of the same code.
#pragma once

#include "simd.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_CONFIGURE(config) _tile_loadconfig(config)
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TILE_ADD_BYTES(to, a, b) _tile_dpbusd(to, a, b)
#define TILE_ADD_PAIRS(to, a, b) _tile_dpbf16ps(to, a, b)

// Whether the kernel lets this process use tiles: they are more state to save than it grants unasked.
inline bool tiles_allowed() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#elif defined(PARADEC_EMULATED_TILES)
#define TILES 1

// As the instructions' descriptions say, for tiles of any size; sums of bfloat16 keep subnormal numbers.
struct EmulatedTiles {
    uint8_t config[64] = {};
    alignas(64) uint8_t data[8][16][64] = {};
    int rows(int t) const { return config[48 + t]; }
    int bytes(int t) const { return config[16 + 2 * t] | config[17 + 2 * t] << 8; }
};
inline EmulatedTiles& emulated() {
    static thread_local EmulatedTiles tiles;
    return tiles;
}
inline void emulate_configure(const void* config) {
    emulated() = EmulatedTiles{};
    std::memcpy(emulated().config, config, 64);
}
inline void emulate_zero(int t) { std::memset(emulated().data[t], 0, sizeof(emulated().data[t])); }
inline void emulate_load(int t, const void* from, size_t stride) {
    EmulatedTiles& tiles = emulated();
    emulate_zero(t);
    for (int r = 0; r < tiles.rows(t); ++r) std::memcpy(tiles.data[t][r], (const char*)from + r * stride, tiles.bytes(t));
}
inline void emulate_store(int t, void* to, size_t stride) {
    EmulatedTiles& tiles = emulated();
    for (int r = 0; r < tiles.rows(t); ++r) std::memcpy((char*)to + r * stride, tiles.data[t][r], tiles.bytes(t));
}
inline void emulate_add_bytes(int to, int a, int b) {
    EmulatedTiles& tiles = emulated();
    for (int m = 0; m < tiles.rows(to); ++m) {
        for (int n = 0; n < tiles.bytes(to) / 4; ++n) {
            uint32_t total;
            std::memcpy(&total, &tiles.data[to][m][4 * n], 4);
            for (int k = 0; k < tiles.bytes(a); ++k) {
                total += (uint32_t)((int)tiles.data[a][m][k] * (int8_t)tiles.data[b][k / 4][4 * n + k % 4]);
            }
            std::memcpy(&tiles.data[to][m][4 * n], &total, 4);
        }
    }
}
inline float emulated_bf16(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline void emulate_add_pairs(int to, int a, int b) {
    EmulatedTiles& tiles = emulated();
    for (int m = 0; m < tiles.rows(to); ++m) {
        for (int n = 0; n < tiles.bytes(to) / 4; ++n) {
            float even = 0, odd = 0, total;
            for (int k = 0; k < tiles.bytes(a) / 4; ++k) {
                const uint8_t *x = &tiles.data[a][m][4 * k], *w = &tiles.data[b][k][4 * n];
                even = std::fma(emulated_bf16(x), emulated_bf16(w), even);
                odd = std::fma(emulated_bf16(x + 2), emulated_bf16(w + 2), odd);
            }
            std::memcpy(&total, &tiles.data[to][m][4 * n], 4);
            total += even + odd;
            std::memcpy(&tiles.data[to][m][4 * n], &total, 4);
        }
    }
}
#define TILE_CONFIGURE(config) emulate_configure(config)
#define TILE_RELEASE() emulate_configure(EmulatedTiles{}.config)
#define TILE_ZERO(t) emulate_zero(t)
#define TILE_LOAD(t, from, stride) emulate_load(t, from, stride)
#define TILE_STORE(t, to, stride) emulate_store(t, to, stride)
#define TILE_ADD_BYTES(to, a, b) emulate_add_bytes(to, a, b)
#define TILE_ADD_PAIRS(to, a, b) emulate_add_pairs(to, a, b)
inline bool tiles_allowed() { return true; }
#else
#define TILES 0
inline bool tiles_allowed() { return true; }
#endif

#if TILES
constexpr int TILE_ROWS = 16;    // the most rows of a tile
constexpr int TILE_BYTES = 64;   // of a row

// Tiles of a thread for blocks of so many rows, until this goes.
struct Tiles {
    explicit Tiles(int rows) {
        alignas(64) uint8_t config[64] = {1};  // the palette
        for (int t = 0; t < 8; ++t) {
            config[16 + 2 * t] = TILE_BYTES;
            config[48 + t] = (uint8_t)(t < 6 ? rows : TILE_ROWS);
        }
        TILE_CONFIGURE(config);
    }
    ~Tiles() { TILE_RELEASE(); }
    Tiles(const Tiles&) = delete;
};

// The sums of two blocks of rows, or of one, with a panel of 32 outputs: 2 x TILE_ROWS x 32 numbers.
// inputs: a block's rows behind each other, `bytes` each, a multiple of TILE_BYTES; the second block
// lies `second` bytes behind the first. ahead: whether to prefetch what follows.
template <bool BYTES, bool BOTH>
inline void add_up_tiles(const char* panel, const char* inputs, size_t bytes, size_t second, bool ahead, void* sums) {
    constexpr int WIDE = 2 * TILE_BYTES;  // of a group's weights
    __asm__ volatile("" ::: "memory");  // what tiles read is written before
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (size_t k = 0; k < bytes; k += TILE_BYTES, panel += TILE_ROWS * WIDE) {
        TILE_LOAD(4, inputs + k, bytes);
        TILE_LOAD(6, panel, WIDE);
        TILE_LOAD(7, panel + TILE_BYTES, WIDE);
        if (ahead) {
            for (int line = 0; line < TILE_ROWS * WIDE; line += 64) __builtin_prefetch(panel + 8192 + line);
        }
        if constexpr (BYTES) {
            TILE_ADD_BYTES(0, 4, 6);
            TILE_ADD_BYTES(1, 4, 7);
        } else {
            TILE_ADD_PAIRS(0, 4, 6);
            TILE_ADD_PAIRS(1, 4, 7);
        }
        if constexpr (BOTH) {
            TILE_LOAD(5, inputs + second + k, bytes);
            if constexpr (BYTES) {
                TILE_ADD_BYTES(2, 5, 6);
                TILE_ADD_BYTES(3, 5, 7);
            } else {
                TILE_ADD_PAIRS(2, 5, 6);
                TILE_ADD_PAIRS(3, 5, 7);
            }
        }
    }
    char* to = (char*)sums;
    TILE_STORE(0, to, WIDE);
    TILE_STORE(1, to + TILE_BYTES, WIDE);
    if constexpr (BOTH) {
        to += TILE_ROWS * WIDE;
        TILE_STORE(2, to, WIDE);
        TILE_STORE(3, to + TILE_BYTES, WIDE);
    }
}
#endif
