/* wmma_async_pg2s: two shared-memory buffers, the next step's copies in flight.

Adds to       wmma_async: one buffer is filled while the other is multiplied
Mirrors       async_pg2s, pipelined
By hand       the two buffers, where the wait goes, one barrier a step instead of two
Signs         sm_80: HMMA, LDSM, LDGSTS; sm_90: HMMA, LDSM, LDGSTS, no HGMMA
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
constexpr int SHARED = std::max(2 * BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename Acc>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM<Acc>)
    wmma_async_pg2s_kernel(const __grid_constant__ Call call) {
    extern __shared__ __align__(32) uint4 shared[];
    const Origin tile = block_origin(call);
    const Rows rows(call, tile);
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
            Fragments fragments;
            fragments.load<Layout>(buffer, k);
            multiply(acc, fragments);
        }
        cp_async_wait<0>();
        __syncthreads();  // the next buffer is filled, and this one is free
    });

    store_tile<Layout>(call, tile, acc, shared);
}

EXPORT launch(const Call* call) {
    return launch_tiled(*call, SHARED, wmma_async_pg2s_kernel<float>,
                        wmma_async_pg2s_kernel<__half>,
                        nullptr);
}
