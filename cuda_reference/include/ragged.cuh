// Loads at the edge of a matrix.
#pragma once

#include "abi.cuh"

// The first `valid` of 8 elements, as 16 bytes; zeros follow. What follows them may be anything.
__device__ inline uint4 load_part(const uint16_t* from, int valid) {
    uint32_t words[4] = {};
#pragma unroll
    for (int e = 0; e < 8; ++e)
        if (e < valid) words[e / 2] |= uint32_t{__ldg(from + e)} << 16 * (e % 2);
    return {words[0], words[1], words[2], words[3]};
}
