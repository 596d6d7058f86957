// In place of include/ptx.cuh: the PTX of the mma rungs on a CPU, by what the PTX ISA says of it.
#pragma once

#include <cstring>

#include "abi.cuh"
#include "block.h"

inline void cp_async(void* to, const void* from, int bytes = 16) {
    if (bytes < 0 || bytes > 16 || bytes % 2 || reinterpret_cast<uintptr_t>(to) % 16 ||
        (bytes && reinterpret_cast<uintptr_t>(from) % 16))
        abort();
    memset(to, 0, 16);
    memcpy(to, from, bytes);
}
inline void cp_async_commit() {}
template <int>
inline void cp_async_wait() {}

// Element `column` of `row` of matrix i of those that the lanes point to.
inline uint16_t element(int i, int row, int column) {
    return static_cast<const uint16_t*>(lanes()[8 * i + row].pointer)[column];
}

template <bool TRANS, int Count>
inline void load_matrices(uint32_t (&x)[Count], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16) abort();
    lane().pointer = row;
    meet();
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < Count; ++i) {
        const uint32_t first = TRANS ? element(i, 2 * t, g) : element(i, g, 2 * t);
        const uint32_t second = TRANS ? element(i, 2 * t + 1, g) : element(i, g, 2 * t + 1);
        x[i] = first | second << 16;
    }
    meet();
}

template <int Count>
inline void ldmatrix(uint32_t (&x)[Count], const void* row) {
    load_matrices<false>(x, row);
}
template <int Count>
inline void ldmatrix_trans(uint32_t (&x)[Count], const void* row) {
    load_matrices<true>(x, row);
}

template <typename T>
inline float half_of(uint32_t both, int second) {
    const uint16_t bits = static_cast<uint16_t>(both >> 16 * second);
    T value;
    memcpy(&value, &bits, 2);
    return static_cast<float>(value);
}

// Element (row, column) of c += a b, row 8 h + g: a and b are in the registers of the lanes.
template <typename T>
inline float dot(int row, int column) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
        const uint32_t a = lanes()[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8];
        const uint32_t b = lanes()[column * 4 + k % 8 / 2].b[k / 8];
        sum += half_of<T>(a, k % 2) * half_of<T>(b, k % 2);
    }
    return sum;
}

inline void give(const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    memcpy(lane().a, a, sizeof a);
    lane().b[0] = b0;
    lane().b[1] = b1;
    meet();
}

template <typename T>
inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    give(a, b0, b1);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) c[i] += dot<T>(g + i / 2 * 8, 2 * t + i % 2);
    meet();
}

template <typename T>
inline void mma(uint32_t (&c)[2], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    give(a, b0, b1);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int h = 0; h < 2; ++h) {
        const float first = half_of<T>(c[h], 0) + dot<T>(g + 8 * h, 2 * t);
        const float second = half_of<T>(c[h], 1) + dot<T>(g + 8 * h, 2 * t + 1);
        const __half2 both = __floats2half2_rn(first, second);
        memcpy(&c[h], &both, 4);
    }
    meet();
}
