/* wmma_async_stage2: a ring of two buffers, registers loaded ahead across steps.

Adds to       wmma_async_pg2s_ps2r: fragments are loaded ahead across steps of k too
Mirrors       async_stages[2], pipelined
By hand       the ring, wait_group 0, the barrier between the two halves of a step
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

constexpr int STAGES = 2;
constexpr int BUFFER = (BM + BN) * Layout::AB_ROW;  // chunks
constexpr int SHARED = std::max(STAGES * BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename Acc>
__global__ void __launch_bounds__(THREADS, 1)
    wmma_async_stage2_kernel(const __grid_constant__ Call call) {
    extern __shared__ __align__(32) uint4 shared[];
    const Origin tile = block_origin(call);
    const Rows rows(call, tile);
    WarpTile<Acc> acc;
    Fragments fragments[2];

    for (int step = 0; step < STAGES - 1; ++step) {
        copy_async<Layout>(shared + step * BUFFER, rows, step);
        cp_async_commit();
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fragments[0].load<Layout>(shared, 0);
    // Buffer `now` is multiplied; half of it is in registers already. `last` is filled again.
    int now = 0;
    for_steps<STAGES - 1>(rows, [&](int step, auto extent) {
        const int next = now + 1 < STAGES ? now + 1 : 0;
        const int last = now > 0 ? now - 1 : STAGES - 1;
        copy_async<Layout>(shared + last * BUFFER, rows, step + STAGES - 1, extent);
        cp_async_commit();
        fragments[1].load<Layout>(shared + now * BUFFER, 1);
        multiply(acc, fragments[0]);
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next buffer is filled; this one is free, its rest in registers
        fragments[0].load<Layout>(shared + next * BUFFER, 0);
        multiply(acc, fragments[1]);
        now = next;
    });
    cp_async_wait<0>();  // also for the zeros past K: the tile of C reuses the buffers
    __syncthreads();

    store_tile<Layout>(call, tile, acc, shared);
}

EXPORT launch(const Call* call) {
    return launch_tiled(*call, SHARED, wmma_async_stage2_kernel<float>,
                        wmma_async_stage2_kernel<__half>,
                        nullptr);
}
