// What the tiled wmma and mma rungs share: the sizes, a block's place, the launch.
#pragma once

#include "launch.cuh"
#include "raster.cuh"

constexpr int BM = 256, BN = 128, BK = 32;  // block tile, in elements
constexpr int WM = 64, WN = 64;             // warp tile: 4 x 2 warps
constexpr int THREADS = 256;
// Blocks that an SM holds: on sm_90 an fp16 accumulator leaves registers for a second one, unless
// the addresses of B by rows take them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <typename Acc>
constexpr int BLOCKS_PER_SM = sizeof(Acc) == 2 ? 2 : 1;
#else
template <typename Acc>
constexpr int BLOCKS_PER_SM = 1;
#endif

constexpr int CHUNK = 8;  // elements of 2 bytes in the 16 that one thread copies at once

struct Origin {
    int64_t row, col;  // of the block tile in C
};

__device__ inline Origin block_origin(const Call& call) {
    const int rows = static_cast<int>(ceil_div<int64_t>(call.M, BM));
    const int cols = static_cast<int>(ceil_div<int64_t>(call.N, BN));
    const Tile tile = raster(blockIdx.x, rows, cols, call.order, call.group);
    return {int64_t{tile.row} * BM, int64_t{tile.col} * BN};
}

// `shared` is in bytes; the kernels are in launch_tiles' order.
inline const char* launch_tiled(const Call& call, int shared, Kernel fp16_fp32, Kernel fp16_fp16,
                                Kernel bf16_fp32, bool b_by_rows = false) {
    // A thread's offsets within its block's rows are 32-bit counts of 16 bytes.
    const int64_t farthest = int64_t{1} << 27;
    const int64_t b_lines = b_by_rows ? call.K : call.N;
    if ((call.M > 1 && call.lda >= farthest) || (b_lines > 1 && call.ldb >= farthest))
        return "lines of A or of B are 2^27 or more elements apart";
    return launch_tiles(call, BM, BN, THREADS, shared, fp16_fp32, fp16_fp16, bf16_fp32, b_by_rows);
}
