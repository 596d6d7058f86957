// What passes between Python and a reference kernel. No torch headers: each .cu compiles alone, in
// seconds, to a cubin or to a shared library whose `launch` Python calls through ctypes.
#pragma once

#include <cstdint>
#include <cstdio>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// C[M x N] = A[M x K] B[K x N]. A and C are stored by rows, B as `b_rows_are` says; ld* are the
// elements from one stored row to the next. kernel.py has the same structure for ctypes.
struct Call {
    const void* a;
    const void* b;
    void* c;
    int64_t M, N, K;
    int64_t lda, ldb, ldc;
    int32_t type;        // of A, B and C: enum Type; with scales, of C alone
    int32_t accumulate;  // fp32 = 0, fp16 = 1
    int32_t b_rows_are;  // columns of B (layout NT) = 0, rows of B (NN) = 1
    int32_t order;       // enum Order
    int32_t group;       // tile rows of a group in the grouped order
    int32_t sms;         // streaming multiprocessors of the device
    cudaStream_t stream;
};

enum Type : int32_t { FP16 = 0, BF16 = 1 };
enum Order : int32_t { LINEAR = 0, SERPENTINE = 1, GROUPED = 2 };

// `launch` returns null, or what failed; the text lives until this thread's next call.
#define EXPORT extern "C" __attribute__((visibility("default"))) const char*

inline const char* describe(cudaError_t error, const char* call) {
    thread_local char text[256];
    snprintf(text, sizeof text, "%s: %s (%s)", cudaGetErrorName(error), cudaGetErrorString(error), call);
    cudaGetLastError();  // an error that is not sticky must not be met again by the next caller
    return text;
}

#define TRY(call)                                                              \
    do {                                                                       \
        cudaError_t error_ = (call);                                           \
        if (error_ != cudaSuccess) return describe(error_, #call);             \
    } while (0)

template <typename T>
constexpr __host__ __device__ T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}
