/* mma_base: block tile 256x128 in shared memory, warp tile 64x64.

Adds to       mma_naive: reuse through shared memory, 16-byte copies, serpentine tile order
Mirrors       permuted[2], tiled, swizzled
By hand       which thread copies what, ldmatrix addresses, the order of the products, barriers
Signs         sm_80: HMMA, LDSM, no LDGSTS; sm_90: HMMA, LDSM, no LDGSTS, no HGMMA
Needs         sm_80; fp16 or bf16; layout NT or NN; 16-byte aligned rows
*/
#include <algorithm>

#include "mma_tile.cuh"

struct Layout {
    // 4 chunks a row of A or B: rows two apart share their banks.
    static constexpr int AB_ROW = BK / CHUNK;
    __device__ static int ab(int row, int chunk) { return row * AB_ROW + chunk; }

    // 16 chunks a row of C: all rows share their banks.
    static constexpr int C_ROW = BN / CHUNK;
    __device__ static int c(int row, int chunk) { return row * C_ROW + chunk; }
};

constexpr int BUFFER = (BM + BN) * Layout::AB_ROW;  // chunks
constexpr int SHARED = std::max(BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename T, typename Acc, bool B_BY_ROWS>
__global__ void __launch_bounds__(THREADS)
    mma_base_kernel(const __grid_constant__ Call call) {
    extern __shared__ uint4 shared[];
    const Origin tile = block_origin(call);
    const RowsOf<B_BY_ROWS> rows(call, tile);
    WarpTile<Acc> acc;

    for (int step = 0; step < rows.steps(); ++step) {
        copy<Layout>(shared, rows, step);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
            FragmentsOf<Layout, B_BY_ROWS> fragments;
            fragments.load(shared, k);
            multiply<T>(acc, fragments);
        }
        __syncthreads();
    }

    store_tile<T, Layout>(call, tile, acc, shared);
}

template <bool B_BY_ROWS>
const char* launch_layout(const Call& call) {
    return launch_tiled(call, SHARED, mma_base_kernel<__half, float, B_BY_ROWS>,
                        mma_base_kernel<__half, __half, B_BY_ROWS>,
                        mma_base_kernel<__nv_bfloat16, float, B_BY_ROWS>, B_BY_ROWS);
}

EXPORT launch(const Call* call) {
    return call->b_rows_are ? launch_layout<true>(*call) : launch_layout<false>(*call);
}
