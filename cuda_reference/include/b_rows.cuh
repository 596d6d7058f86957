// B given by rows, K x N: what differs from B given by columns. The BK rows of a step have BN
// elements each, as many as rows of C, and are in a buffer as those are: chunk c of row k at chunk
// c(k, c) after the rows of A.
#pragma once

#include "copy.cuh"

// What one thread copies: four rows of A as before, and chunk t % 16 of every 16th row of B.
struct RowsOfBoth : Rows {
    static constexpr int OF_A = BM / 64;

    int columns;  // elements of this thread's chunks of B that exist

    __device__ static bool of_b(int i) { return i >= OF_A; }
    __device__ static int k_row(int i) { return threadIdx.x / 16 + 16 * (i - OF_A); }

    // A chunk past the edge repeats the first one, of which nothing is read.
    __device__ RowsOfBoth(const Call& call, Origin tile) : Rows(call, tile) {
        const int chunk = threadIdx.x % 16;
        const int64_t left = call.N - tile.col - chunk * CHUNK;
        columns = static_cast<int>(max(min(left, int64_t{CHUNK}), int64_t{0}));
        b = static_cast<const uint4*>(call.b) + tile.col / CHUNK;
        for (int i = OF_A; i < COUNT; ++i)
            offset[i] = static_cast<uint32_t>(k_row(i) * (call.ldb / CHUNK)) + (columns ? chunk : 0);
    }

    // Elements that exist of chunk i, in the step after the whole ones.
    __device__ int part(int i) const {
        return !of_b(i) ? tail() : k_row(i) < call.K % BK ? columns : 0;
    }

    __device__ void find(const uint16_t* (&from)[COUNT], int step) const {
        const uint4* a_step = a + int64_t{step} * (BK / CHUNK);
        const uint4* b_step = b + int64_t{step} * BK * (call.ldb / CHUNK);
        asm volatile("" : "+l"(a_step), "+l"(b_step));
        for (int i = 0; i < COUNT; ++i)
            from[i] = reinterpret_cast<const uint16_t*>((of_b(i) ? b_step : a_step) + offset[i]);
    }

    template <typename Layout>
    __device__ static int place(int i) {
        return of_b(i) ? BM * Layout::AB_ROW + Layout::c(k_row(i), threadIdx.x % 16)
                       : Layout::ab(row(i), chunk());
    }
};

// One step of k, through registers.
template <typename Layout>
__device__ inline void copy(uint4* buffer, const RowsOfBoth& rows, int step) {
    const uint16_t* from[Rows::COUNT];
    rows.find(from, step);
    if (step < rows.whole && rows.columns == CHUNK) {
        uint4 chunks[Rows::COUNT];
        for (int i = 0; i < Rows::COUNT; ++i)
            chunks[i] = __ldg(reinterpret_cast<const uint4*>(from[i]));
        for (int i = 0; i < Rows::COUNT; ++i) buffer[rows.place<Layout>(i)] = chunks[i];
    } else {
        const bool whole = step < rows.whole;
        for (int i = 0; i < Rows::COUNT; ++i) {
            const int all = rows.of_b(i) ? rows.columns : CHUNK;
            buffer[rows.place<Layout>(i)] = load_part(from[i], whole ? all : rows.part(i));
        }
    }
}

// One step of k with cp.async, not waited for. A step past K writes zeros.
template <typename Layout, Extent EXTENT = Extent::UNKNOWN>
__device__ inline void copy_async(uint4* buffer, const RowsOfBoth& rows, int step,
                                  Known<EXTENT> = {}) {
    const uint16_t* from[Rows::COUNT];
    rows.find(from, step);
    const bool whole = EXTENT == Extent::UNKNOWN ? step < rows.whole : EXTENT == Extent::WHOLE;
    for (int i = 0; i < Rows::COUNT; ++i) {
        uint4* to = buffer + rows.place<Layout>(i);
        if (whole && !rows.of_b(i))
            cp_async(to, from[i]);
        else
            cp_async(to, from[i],
                     2 * (whole ? rows.columns : step == rows.whole ? rows.part(i) : 0));
    }
}
