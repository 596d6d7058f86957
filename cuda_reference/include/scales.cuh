// Scales: what elements of 8 bits are multiplied with, in blocks of 128 elements of K.
#pragma once

#include "abi.cuh"

// `call.type` is that of C; A and B are e4m3. Of each 128 elements of K, scale_a has a scale for a
// row of A, scale_b for 128 columns of B. Strides are in elements; they are 0 along what shares a
// scale. kernel.py has the same structure for ctypes.
struct Scaled {
    Call call;
    const float* scale_a;
    const float* scale_b;
    int64_t a_line, a_step;
    int64_t b_line, b_step;
};
