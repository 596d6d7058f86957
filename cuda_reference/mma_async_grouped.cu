/* mma_async_grouped: groups of rows, which offsets on the device cut; each block counts its own.

Adds to       mma_async_stage3: slots for the tiles of groups; a block finds its slot's group
Mirrors       grouped
By hand       the ring, wait_group 1, the counting, the group's own B and end
Signs         sm_80: HMMA, LDSM, LDGSTS; sm_90: HMMA, LDSM, LDGSTS, no HGMMA
Needs         sm_80; fp16 or bf16; layout NT or NN; 16-byte aligned rows; any number of groups
*/
#include <algorithm>

#include "launch_groups.cuh"
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

constexpr int STAGES = 3;
constexpr int BUFFER = (BM + BN) * Layout::AB_ROW;  // chunks
constexpr int SHARED = std::max(STAGES * BUFFER, BM * Layout::C_ROW) * 16;  // bytes

template <typename T, typename Acc, bool B_BY_ROWS>
__device__ void multiply_tile(const Call& call, Origin tile, uint4* shared) {
    const RowsOf<B_BY_ROWS> rows(call, tile);
    WarpTile<Acc> acc;
    FragmentsOf<Layout, B_BY_ROWS> fragments[2];

    for (int step = 0; step < STAGES - 1; ++step) {
        copy_async<Layout>(shared + step * BUFFER, rows, step);
        cp_async_commit();
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    fragments[0].load(shared, 0);
    // Buffer `now` is multiplied; half of it is in registers already. `last` is filled again.
    int now = 0;
    for_steps<STAGES - 1>(rows, [&](int step, auto extent) {
        const int next = now + 1 < STAGES ? now + 1 : 0;
        const int last = now > 0 ? now - 1 : STAGES - 1;
        fragments[1].load(shared + now * BUFFER, 1);
        multiply<T>(acc, fragments[0]);
        copy_async<Layout>(shared + last * BUFFER, rows, step + STAGES - 1, extent);
        cp_async_commit();
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next buffer is filled; this one is free, its rest in registers
        fragments[0].load(shared + next * BUFFER, 0);
        multiply<T>(acc, fragments[1]);
        now = next;
    });
    cp_async_wait<0>();  // also for the zeros past K: the tile of C reuses the buffers
    __syncthreads();

    store_tile<T, Layout>(call, tile, acc, shared);
}

template <typename T, typename Acc, bool B_BY_ROWS>
__global__ void __launch_bounds__(THREADS, 1)
    mma_async_grouped_kernel(const __grid_constant__ Groups groups) {
    extern __shared__ uint4 shared[];
    const GroupTile place = group_tile(groups);
    // The block of an empty slot has nothing to do, all of it.
    if (place.tile.row < place.call.M)
        multiply_tile<T, Acc, B_BY_ROWS>(place.call, place.tile, shared);
}

template <bool B_BY_ROWS>
const char* launch_layout(const Groups& groups) {
    return launch_groups(groups, SHARED, mma_async_grouped_kernel<__half, float, B_BY_ROWS>,
                         mma_async_grouped_kernel<__half, __half, B_BY_ROWS>,
                         mma_async_grouped_kernel<__nv_bfloat16, float, B_BY_ROWS>);
}

EXPORT launch(const Groups* groups) {
    return groups->call.b_rows_are ? launch_layout<true>(*groups) : launch_layout<false>(*groups);
}
