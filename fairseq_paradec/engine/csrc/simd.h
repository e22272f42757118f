// Vectors of floats, as wide as the instruction set that this file is compiled for.
//
// GCC's and Clang's vector extensions keep one source for AVX2, AVX-512, NEON and plain C++; only dot
// products of small numbers need intrinsics, in linear.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));
typedef uint32_t vuint __attribute__((vector_size(LANES * 4)));
typedef uint16_t vhalf __attribute__((vector_size(LANES * 2)));
typedef int8_t vbyte __attribute__((vector_size(LANES)));
typedef uint8_t vubyte __attribute__((vector_size(LANES)));

// Rows of states are padded to whole vectors with zeros.
inline int padded(int count) { return (count + LANES - 1) / LANES * LANES; }

template <class V, class T>
inline V load_as(const T* from) {
    V value;
    std::memcpy(&value, from, sizeof(V));
    return value;
}

inline vfloat load(const float* from) { return load_as<vfloat>(from); }
inline void store(float* to, vfloat value) { std::memcpy(to, &value, sizeof(value)); }
inline vfloat splat(float value) { return value + vfloat{}; }

// A bfloat16 is the upper half of a float.
inline vfloat load(const uint16_t* from) {
    return (vfloat)(__builtin_convertvector(load_as<vhalf>(from), vuint) << 16);
}

inline vfloat load(const int8_t* from) {
    return __builtin_convertvector(__builtin_convertvector(load_as<vbyte>(from), vint), vfloat);
}

inline vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }

inline float sum(vfloat v) {
    float parts[LANES];
    store(parts, v);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
    }
    return parts[0];
}

inline float largest(vfloat v) {
    float parts[LANES];
    store(parts, v);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) parts[i] = parts[i] > parts[i + half] ? parts[i] : parts[i + half];
    }
    return parts[0];
}

// v[i ^ HALF] in lane i.
template <int HALF>
inline vfloat swapped(vfloat v) {
#if defined(__clang__)
    vfloat other{};
    for (int i = 0; i < LANES; ++i) other[i] = v[i ^ HALF];
    return other;
#else
    vint order;
    for (int i = 0; i < LANES; ++i) order[i] = i ^ HALF;
    return __builtin_shuffle(v, order);
#endif
}

// The sums of LANES vectors, v[i]'s in lane i; each sum adds the same lanes in the same tree.
template <int HALF = LANES / 2>
inline vfloat sums_of(vfloat* v) {
    if constexpr (HALF == 0) {
        return v[0];
    } else {
        vint upper;
        for (int i = 0; i < LANES; ++i) upper[i] = i & HALF ? -1 : 0;
        for (int i = 0; i < HALF; ++i) {
            const vfloat a = v[i], b = v[i + HALF];
            v[i] = (upper ? b : a) + swapped<HALF>(upper ? a : b);
        }
        return sums_of<HALF / 2>(v);
    }
}

inline vfloat magnitude(vfloat v) { return (vfloat)((vuint)v & 0x7fffffff); }

// Round numbers below 2^22 to the nearest whole number, ties to even.
inline vuint nearest(vfloat v) { return (vuint)(v + 12582912.0f) - 0x4b400000; }

// e^x, relative error below 2e-7: 2^n times a polynomial (Cephes' coefficients). Below -87 it is
// 1e-38; NaN stays NaN.
inline vfloat exp(vfloat x) {
    const vfloat low = splat(-87.3f), high = splat(88.3f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    vfloat n = x * 1.44269504088896341f;
    n += n < vfloat{} ? splat(-0.5f) : splat(0.5f);
    const vint k = __builtin_convertvector(n, vint);
    const vfloat whole = __builtin_convertvector(k, vfloat);
    x = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vfloat y = splat(1.9875691500e-4f);
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * (x * x) + x + 1.0f;
    return y * (vfloat)((k + 127) << 23);
}

inline vhalf to_bfloat16(vfloat value) {
    vuint bits = (vuint)value;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bits = value == value ? bits : (vuint)(vint{} + 0x7fc0);  // NaN
    return __builtin_convertvector(bits, vhalf);
}

inline uint16_t to_bfloat16(float value) { return to_bfloat16(splat(value))[0]; }

inline float from_bfloat16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
