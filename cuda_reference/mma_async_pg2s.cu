/* mma_async_pg2s: two shared-memory buffers, the next step's copies in flight.

Adds to       mma_async: one buffer is filled while the other is multiplied
Mirrors       async_pg2s, pipelined
By hand       the two buffers, where the wait goes, one barrier a step instead of two
Signs         sm_80: HMMA, LDSM, LDGSTS; sm_90: HMMA, LDSM, LDGSTS, no HGMMA
Needs         sm_80; fp16 or bf16; layout NT or NN; 16-byte aligned rows
*/
#include <algorithm>

#include "mma_tile.cuh"

struct Layout {
    // 4 chunks a row of A or B: rows two apart would share their banks, so they are shifted by one.
    static constexpr int AB_ROW = BK / CHUNK;
    __device__ static int ab(int row, int chunk) {
        return row * AB_ROW + (chunk + row / 2) % AB_ROW;
    }

    // 16 chunks a row of C: all rows would share their banks.
    static constexpr int C_ROW = BN / CHUNK;
    __device__ static int c(int row, int chunk) { return row * C_ROW + (chunk + row) % C_ROW; }
};

constexpr int BUFFER = (BM + BN) * Layout::AB_ROW;  // chunks
constexpr int SHARED = std::max(2 * BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename T, typename Acc, bool B_BY_ROWS>
__global__ void __launch_bounds__(THREADS, B_BY_ROWS ? 1 : BLOCKS_PER_SM<Acc>)
    mma_async_pg2s_kernel(const __grid_constant__ Call call) {
    extern __shared__ uint4 shared[];
    const Origin tile = block_origin(call);
    const RowsOf<B_BY_ROWS> rows(call, tile);
    WarpTile<Acc> acc;

    copy_async<Layout>(shared, rows, 0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for_steps<1>(rows, [&](int step, auto extent) {
        const uint4* buffer = shared + step % 2 * BUFFER;
        copy_async<Layout>(shared + (step + 1) % 2 * BUFFER, rows, step + 1, extent);
        cp_async_commit();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
            FragmentsOf<Layout, B_BY_ROWS> fragments;
            fragments.load(buffer, k);
            multiply<T>(acc, fragments);
        }
        cp_async_wait<0>();
        __syncthreads();  // the next buffer is filled, and this one is free
    });

    store_tile<T, Layout>(call, tile, acc, shared);
}

template <bool B_BY_ROWS>
const char* launch_layout(const Call& call) {
    return launch_tiled(call, SHARED, mma_async_pg2s_kernel<__half, float, B_BY_ROWS>,
                        mma_async_pg2s_kernel<__half, __half, B_BY_ROWS>,
                        mma_async_pg2s_kernel<__nv_bfloat16, float, B_BY_ROWS>, B_BY_ROWS);
}

EXPORT launch(const Call* call) {
    return call->b_rows_are ? launch_layout<true>(*call) : launch_layout<false>(*call);
}
