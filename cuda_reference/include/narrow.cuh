// From an accumulator to results of 16 bits.
#pragma once

#include "abi.cuh"

__device__ inline void narrow(__half value, __half& to) { to = value; }
__device__ inline void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ inline void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

// Two neighbours of a row in one register, the first in the low half.
template <typename T>
__device__ inline uint32_t pack(float first, float second);

template <>
__device__ inline uint32_t pack<__half>(float first, float second) {
    const __half2 both = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&both);
}

template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float first, float second) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&both);
}
