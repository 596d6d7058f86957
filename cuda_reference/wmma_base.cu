/* wmma_base: block tile 256x128 in shared memory, warp tile 64x64.

Adds to       wmma_naive: reuse through shared memory, 16-byte copies, serpentine tile order
Mirrors       permuted[2], tiled, swizzled
By hand       which thread copies what, the order of the products, barriers, C staged
Signs         sm_80: HMMA, LDSM, no LDGSTS; sm_90: HMMA, LDSM, no LDGSTS, no HGMMA
Needs         sm_80; fp16; 16-byte aligned rows
*/
#include <algorithm>

#include "wmma_tile.cuh"

struct Layout {
    // 4 chunks a row of A or B: rows two apart share their banks.
    static constexpr int AB_ROW = BK / CHUNK;
    __device__ static constexpr int ab(int row, int chunk) { return row * AB_ROW + chunk; }

    // 16 chunks a row of C: all rows share their banks.
    static constexpr int C_ROW = BN / CHUNK;
};

constexpr int BUFFER = (BM + BN) * Layout::AB_ROW;  // chunks
constexpr int SHARED = std::max(BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename Acc>
__global__ void __launch_bounds__(THREADS)
    wmma_base_kernel(const __grid_constant__ Call call) {
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
    return launch_tiled(*call, SHARED, wmma_base_kernel<float>,
                        wmma_base_kernel<__half>,
                        nullptr);
}
