// The launch of one block per output tile, and what is refused.
#pragma once

#include <climits>

#include "abi.cuh"

using Kernel = void (*)(Call);

// Tiles of `rows` x `cols`; `shared` is dynamic shared memory in bytes. The kernels, by type and
// accumulator: fp16 with fp32, fp16 with fp16, bf16 with fp32; null where a rung has none. They
// read B by its columns (layout NT), or by its rows (NN).
inline const char* launch_tiles(const Call& call, int rows, int cols, int threads, int shared,
                                Kernel fp16_fp32, Kernel fp16_fp16, Kernel bf16_fp32,
                                bool b_by_rows = false) {
    if (call.b_rows_are != b_by_rows) return "this kernel does not read B in this layout";
    Kernel kernel = nullptr;
    if (call.type == FP16) kernel = call.accumulate ? fp16_fp16 : fp16_fp32;
    if (call.type == BF16 && !call.accumulate) kernel = bf16_fp32;
    if (!kernel) return "this type and this accumulator are not supported together";
    const int64_t tiles = ceil_div<int64_t>(call.M, rows) * ceil_div<int64_t>(call.N, cols);
    if (tiles == 0) return nullptr;
    if (tiles > INT_MAX) return "more than 2^31 - 1 output tiles";
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    kernel<<<static_cast<unsigned>(tiles), threads, shared, call.stream>>>(call);
    TRY(cudaGetLastError());
    return nullptr;
}
