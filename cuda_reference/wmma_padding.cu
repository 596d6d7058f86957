/* wmma_padding: shared-memory rows padded by 16 bytes, reads without conflicts.

Adds to       wmma_base: rows of A and B are 40 elements apart, not 32; of C 136, not 128
Mirrors       permuted[1]
By hand       the padding; wmma fixes the order within a row, so chunks cannot be permuted
Signs         sm_80: HMMA, LDSM, no LDGSTS; sm_90: HMMA, LDSM, no LDGSTS, no HGMMA
Needs         sm_80; fp16; 16-byte aligned rows
*/
#include <algorithm>

#include "wmma_tile.cuh"

struct Layout {
    // One chunk more than the 4 of a row of A or B: the 8 rows that are read together spread over
    // all banks.
    static constexpr int AB_ROW = BK / CHUNK + 1;
    __device__ static constexpr int ab(int row, int chunk) { return row * AB_ROW + chunk; }

    // One more than the 16 of a row of C.
    static constexpr int C_ROW = BN / CHUNK + 1;
};

constexpr int BUFFER = (BM + BN) * Layout::AB_ROW;  // chunks
constexpr int SHARED = std::max(BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename Acc>
__global__ void __launch_bounds__(THREADS)
    wmma_padding_kernel(const __grid_constant__ Call call) {
    extern __shared__ __align__(32) uint4 shared[];
    const Origin tile = block_origin(call);
    const Rows rows(call, tile);
    WarpTile<Acc> acc;

    for (int step = 0; step < rows.steps(); ++step) {
        copy<Layout>(shared, rows, step);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
            Fragments fragments;
            fragments.load<Layout>(shared, k);
            multiply(acc, fragments);
        }
        __syncthreads();
    }

    store_tile<Layout>(call, tile, acc, shared);
}

EXPORT launch(const Call* call) {
    return launch_tiled(*call, SHARED, wmma_padding_kernel<float>,
                        wmma_padding_kernel<__half>,
                        nullptr);
}
