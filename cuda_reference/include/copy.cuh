// Copies of a block's A and B from global to shared memory, 16 bytes a thread. A buffer holds the
// BM rows of A, then the BN rows of B; its layout places chunk c of row r at chunk ab(r, c).
#pragma once

#include "ptx.cuh"
#include "ragged.cuh"
#include "tile.cuh"

// What one thread copies: chunk t % 4 of every 64th row, four rows of A and two of B.
struct Rows {
    static constexpr int COUNT = (BM + BN) / 64;

    const uint4 *a, *b;      // the block's first row of A, of B
    uint32_t offset[COUNT];  // in chunks, from there to this thread's chunks in step 0 of k
    int whole;               // steps of k that are wholly before K
    const Call& call;        // in constant memory, where it takes no registers

    __device__ static int row(int i) { return threadIdx.x / 4 + 64 * i; }
    __device__ static int chunk() { return threadIdx.x % 4; }

    // Rows past the edge repeat the last one: they only reach elements of C that are not stored.
    __device__ Rows(const Call& call, Origin tile)
        : a(static_cast<const uint4*>(call.a) + tile.row * (call.lda / CHUNK)),
          b(static_cast<const uint4*>(call.b) + tile.col * (call.ldb / CHUNK)),
          whole(static_cast<int>(call.K / BK)),
          call(call) {
        for (int i = 0; i < COUNT; ++i) {
            const bool is_a = i < BM / 64;
            const int64_t last = is_a ? call.M - tile.row - 1 : call.N - tile.col - 1;
            const int64_t pitch = (is_a ? call.lda : call.ldb) / CHUNK;
            const int64_t inside = min(int64_t{row(i) - (is_a ? 0 : BM)}, last);
            offset[i] = static_cast<uint32_t>(inside * pitch) + chunk();
        }
    }

    __device__ int steps() const { return static_cast<int>(ceil_div<int64_t>(call.K, BK)); }

    // Elements of this thread's chunk that are before K, in the step after the whole ones.
    __device__ int tail() const {
        return max(min(static_cast<int>(call.K % BK) - chunk() * CHUNK, CHUNK), 0);
    }

    // The thread's chunks in a step of k. The empty asm keeps the compiler from holding six
    // pointers, of two registers each, instead of six offsets.
    __device__ void find(const uint16_t* (&from)[COUNT], int step) const {
        const uint4* a_step = a + int64_t{step} * (BK / CHUNK);
        const uint4* b_step = b + int64_t{step} * (BK / CHUNK);
        asm volatile("" : "+l"(a_step), "+l"(b_step));
        for (int i = 0; i < COUNT; ++i) {
            const uint4* step_from = i < BM / 64 ? a_step : b_step;
            from[i] = reinterpret_cast<const uint16_t*>(step_from + offset[i]);
        }
    }
};

// One step of k, through registers. Every layout repeats after 64 rows, but for an offset.
template <typename Layout>
__device__ inline void copy(uint4* buffer, const Rows& rows, int step) {
    uint4* to = buffer + Layout::ab(rows.row(0), rows.chunk());
    const uint16_t* from[Rows::COUNT];
    rows.find(from, step);
    if (step < rows.whole) {
        uint4 chunks[Rows::COUNT];
        for (int i = 0; i < Rows::COUNT; ++i)
            chunks[i] = __ldg(reinterpret_cast<const uint4*>(from[i]));
        for (int i = 0; i < Rows::COUNT; ++i) to[Layout::ab(64 * i, 0)] = chunks[i];
    } else {
        for (int i = 0; i < Rows::COUNT; ++i)
            to[Layout::ab(64 * i, 0)] = load_part(from[i], rows.tail());
    }
}

// Whether a step of k is known to be wholly before K, or across it or past it, or is not known.
enum class Extent { WHOLE, PART, UNKNOWN };

template <Extent VALUE>
struct Known {
    static constexpr Extent value = VALUE;
};

// One step of k with cp.async, not waited for. A step past K writes zeros.
template <typename Layout, Extent EXTENT = Extent::UNKNOWN>
__device__ inline void copy_async(uint4* buffer, const Rows& rows, int step,
                                  Known<EXTENT> = {}) {
    uint4* to = buffer + Layout::ab(rows.row(0), rows.chunk());
    const uint16_t* from[Rows::COUNT];
    rows.find(from, step);
    const bool whole = EXTENT == Extent::UNKNOWN ? step < rows.whole : EXTENT == Extent::WHOLE;
    if (whole) {
        for (int i = 0; i < Rows::COUNT; ++i) cp_async(to + Layout::ab(64 * i, 0), from[i]);
    } else {
        const int bytes = step == rows.whole ? 2 * rows.tail() : 0;
        for (int i = 0; i < Rows::COUNT; ++i)
            cp_async(to + Layout::ab(64 * i, 0), from[i], bytes);
    }
}

// body(step, extent of the step AHEAD of it) for every step. Two loops, so that the edge costs the
// long one nothing.
template <int AHEAD, typename Body>
__device__ __forceinline__ void for_steps(const Rows& rows, Body body) {
    const int steps = rows.steps();
    int step = 0;
    for (; step + AHEAD < rows.whole; ++step) body(step, Known<Extent::WHOLE>{});
    for (; step < steps; ++step) body(step, Known<Extent::PART>{});
}
