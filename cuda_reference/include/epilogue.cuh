// From a tile staged in shared memory to C.
#pragma once

#include "narrow.cuh"
#include "tile.cuh"

// Stores the ROWS x BN elements of C from (row, col) on, those that exist. `staged(r, c)` is chunk
// c of row r. A thread stores one chunk of every 16th row, 16 bytes at once where C is aligned.
template <int ROWS, typename Staged>
__device__ inline void store_rows(const Call& call, int64_t row, int64_t col, Staged staged) {
    const int chunk = threadIdx.x % (BN / CHUNK);
    const bool aligned = reinterpret_cast<uintptr_t>(call.c) % 16 == 0 && call.ldc % CHUNK == 0;
    const int64_t valid = call.N - col - chunk * CHUNK;  // elements of this chunk that exist
    uint16_t* to = static_cast<uint16_t*>(call.c) + row * call.ldc + col + chunk * CHUNK;
    for (int r = threadIdx.x / (BN / CHUNK); r < ROWS; r += THREADS / (BN / CHUNK)) {
        if (row + r >= call.M || valid <= 0) break;
        const uint4 value = staged(r, chunk);
        uint16_t* place = to + r * call.ldc;
        if (aligned && valid >= CHUNK) {
            __stwb(reinterpret_cast<uint4*>(place), value);  // an assignment is split in four
        } else {
            const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
            for (int e = 0; e < CHUNK; ++e)
                if (e < valid) place[e] = static_cast<uint16_t>(words[e / 2] >> 16 * (e % 2));
        }
    }
}
