// The warp tile of the wmma rungs: fragments from shared memory, products, the tile of C. Which
// lane holds what is the compiler's secret.
#pragma once

#include <mma.h>

#include "copy.cuh"
#include "epilogue.cuh"

namespace wmma = nvcuda::wmma;

template <typename Acc>
struct WarpTile {
    wmma::fragment<wmma::accumulator, 16, 16, 16, Acc> piece[WM / 16][WN / 16];

    __device__ WarpTile() {
        for (int i = 0; i < WM / 16; ++i)
            for (int j = 0; j < WN / 16; ++j) wmma::fill_fragment(piece[i][j], Acc{});
    }
};

// One step of 16 in k of a warp's rows of A and columns of B.
struct Fragments {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a[WM / 16];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b[WN / 16];

    // The k-th step of 16 of a buffer.
    template <typename Layout>
    __device__ void load(const uint4* buffer, int k) {
        const int warp = threadIdx.x / 32;
        const uint4* a_at = buffer + Layout::ab(warp / 2 * WM, 2 * k);
        const uint4* b_at = buffer + Layout::ab(BM + warp % 2 * WN, 2 * k);
        constexpr unsigned stride = Layout::AB_ROW * CHUNK;
#pragma unroll
        for (int i = 0; i < WM / 16; ++i)
            wmma::load_matrix_sync(
                a[i], reinterpret_cast<const __half*>(a_at + Layout::ab(16 * i, 0)), stride);
#pragma unroll
        for (int j = 0; j < WN / 16; ++j)
            wmma::load_matrix_sync(
                b[j], reinterpret_cast<const __half*>(b_at + Layout::ab(16 * j, 0)), stride);
    }
};

// Right, left, right, left: a row of products ends at the b that the next row starts with.
template <typename Acc>
__device__ inline void multiply(WarpTile<Acc>& c, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int n = 0; n < WN / 16; ++n) {
            const int j = i % 2 ? WN / 16 - 1 - n : n;
            wmma::mma_sync(c.piece[i][j], f.a[i], f.b[j], c.piece[i][j]);
        }
}

// 8 staged elements as a chunk of halves.
__device__ inline uint4 to_chunk(const __half* staged) {
    return *reinterpret_cast<const uint4*>(staged);
}

__device__ inline uint4 to_chunk(const float* staged) {
    const float4 low = reinterpret_cast<const float4*>(staged)[0];
    const float4 high = reinterpret_cast<const float4*>(staged)[1];
    return {pack<__half>(low.x, low.y), pack<__half>(low.z, low.w), pack<__half>(high.x, high.y),
            pack<__half>(high.z, high.w)};
}

// Registers -> shared memory -> global memory, so that a warp stores whole lines. Every thread must
// be done with `shared`. fp32 is staged as it is and rounded on the way out, in two parts of the
// tile, so that it takes no more room than fp16.
template <typename Layout, typename Acc>
__device__ inline void store_tile(const Call& call, Origin tile, const WarpTile<Acc>& c,
                                  uint4* shared) {
    constexpr int ROWS = BM * sizeof(__half) / sizeof(Acc);
    constexpr int STRIDE = Layout::C_ROW * CHUNK;
    Acc* staged = reinterpret_cast<Acc*>(shared);
    const int warp = threadIdx.x / 32;
    const int row = warp / 2 * WM, col = warp % 2 * WN;
    for (int first = 0; first < BM; first += ROWS) {
        if (row / ROWS * ROWS == first) {
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 16; ++j)
                    wmma::store_matrix_sync(staged + (row % ROWS + 16 * i) * STRIDE + col + 16 * j,
                                            c.piece[i][j], STRIDE, wmma::mem_row_major);
        }
        __syncthreads();
        store_rows<ROWS>(call, tile.row + first, tile.col, [&](int r, int chunk) {
            return to_chunk(staged + r * STRIDE + chunk * CHUNK);
        });
        __syncthreads();
    }
}
