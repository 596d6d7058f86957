// From the accumulator's fp32 to the result's 16 bits, and straight to global memory.
#pragma once

#include "abi.cuh"

__device__ inline void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ inline void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

// Two neighbours of a row in one register, the first in the low half.
template <typename T>
__device__ inline uint32_t narrow2(float first, float second) {
    alignas(4) T pair[2];
    narrow(first, pair[0]);
    narrow(second, pair[1]);
    return *reinterpret_cast<uint32_t*>(pair);
}

// Writes the 64 x N accumulator of a warpgroup whose first element is C[row][col]; what lies
// outside C is left out. Any pitch; pairs are written at once where their address allows.
template <int N, typename T>
__device__ void store_accumulator(const float (&d)[N / 2], T* c, int64_t ldc, int row, int col,
                                  int M, int N_all) {
    const int thread = threadIdx.x % 128;
    const bool pairs = ldc % 2 == 0 && reinterpret_cast<uintptr_t>(c) % 4 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + thread / 32 * 16 + thread % 32 / 4 + half * 8;
        T* line = c + r * ldc;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            const int k = col + j * 8 + thread % 4 * 2;
            const float first = d[j * 4 + half * 2], second = d[j * 4 + half * 2 + 1];
            if (r < M && k + 1 < N_all && pairs) {
                *reinterpret_cast<uint32_t*>(line + k) = narrow2<T>(first, second);
            } else if (r < M) {
                if (k < N_all) narrow(first, line[k]);
                if (k + 1 < N_all) narrow(second, line[k + 1]);
            }
        }
    }
}
