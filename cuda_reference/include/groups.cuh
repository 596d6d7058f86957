// Groups: products whose rows a tensor on the device cuts, and how a block finds its tile of one.
#pragma once

#include "tile.cuh"

// `call` has the rows of A and C of all groups, one group after another, and the B of the first.
// kernel.py has the same structure for ctypes.
struct Groups {
    Call call;
    const int32_t* offs;  // the row at which each group ends; null: one group has all rows
    int64_t b_group;      // elements from one group's B to the next's
    int32_t count;        // groups; the rows after the last are one more, the rest
};

// Slots that the rows have. Group g has those from first_row(g) / BM + g on: always enough for its
// tiles, and no sum over the groups before it. Some slots stay empty.
inline __host__ __device__ int64_t slots_of(const Groups& groups) {
    return groups.call.M / BM + groups.count + 1;
}

// The first row of a group; of group count + 1, the end.
__device__ inline int64_t first_row(const Groups& groups, int group) {
    const int64_t rows = groups.call.M;
    if (group == 0) return 0;
    if (group > groups.count || !groups.offs) return rows;
    return min(max(int64_t{__ldg(groups.offs + group - 1)}, int64_t{0}), rows);
}

// The group of a slot: those that begin there or before are counted, some by each thread.
__device__ inline int group_of(const Groups& groups, int slot) {
    int found = -1;
#pragma unroll 1
    for (int first = 0; first <= groups.count; first += THREADS) {
        const int group = first + static_cast<int>(threadIdx.x);
        const bool known = group <= groups.count;
        found += __syncthreads_count(known && first_row(groups, group) / BM + group <= slot);
    }
    return found;
}

// A block's tile, and its group as a product: of its own B, with rows up to the group's end. The
// rest has no K, so that zeros are stored. The tile of an empty slot begins at the end or after it.
struct GroupTile {
    Origin tile;
    Call call;
};

__device__ inline GroupTile group_tile(const Groups& groups) {
    Call call = groups.call;
    const int cols = static_cast<int>(ceil_div<int64_t>(call.N, BN));
    const int slots = static_cast<int>(slots_of(groups));
    const Tile place = raster(blockIdx.x, slots, cols, call.order, call.group);
    const int group = group_of(groups, place.row);
    const int64_t begin = first_row(groups, group);
    const int64_t before = begin / BM + group;
    call.M = max(begin, first_row(groups, group + 1));
    call.b = static_cast<const uint16_t*>(call.b) +
             max(min(group, groups.count - 1), 0) * groups.b_group;
    if (group == groups.count) call.K = 0;
    const int64_t row = begin + max(place.row - before, int64_t{0}) * BM;
    return {{row, int64_t{place.col} * BN}, call};
}
