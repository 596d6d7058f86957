// In place of include/launch.cuh: the launch of one block per output tile, one after another.
#pragma once

#include "abi.cuh"
#include "block.h"

using Kernel = void (*)(Call);

alignas(128) inline uint4 shared[228 * 64];  // the most that an SM has, in 16 bytes

// Blocks one after another; each finds NaN in shared memory.
inline void run_grid(int64_t blocks, int threads, std::function<void()> body) {
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        std::fill(std::begin(shared), std::end(shared), uint4{~0u, ~0u, ~0u, ~0u});
        run_block(threads, body);
    }
}

inline const char* launch_tiles(const Call& call, int rows, int cols, int threads, int bytes,
                                Kernel fp16_fp32, Kernel fp16_fp16, Kernel bf16_fp32,
                                bool b_by_rows = false) {
    if (call.b_rows_are != b_by_rows) return "layout";
    const Kernel kernel = call.type ? bf16_fp32 : call.accumulate ? fp16_fp16 : fp16_fp32;
    const int64_t tiles = ceil_div<int64_t>(call.M, rows) * ceil_div<int64_t>(call.N, cols);
    run_grid(tiles, threads, [&] { kernel(call); });
    return nullptr;
}
