// The warp tile of the mma rungs: fragments from shared memory, products, the tile of C.
#pragma once

#include <type_traits>

#include "b_rows.cuh"
#include "epilogue.cuh"

// A warp's 16 x 8 piece of C: a lane's registers, see `mma`.
template <typename Acc>
struct Piece;
template <>
struct Piece<float> {
    float x[4];
};
template <>
struct Piece<__half> {
    uint32_t x[2];
};

template <typename Acc>
struct WarpTile {
    Piece<Acc> piece[WM / 16][WN / 8] = {};
};

// One step of 16 in k of a warp's rows of A and columns of B, which a buffer has in this layout.
template <typename Layout>
struct Fragments {
    uint32_t a[WM / 16][4], b[WN / 16][4];

    // The k-th step of 16 of a buffer. The four matrices of a[i] are rows 0-7 and 8-15 at k 0-7,
    // then both at k 8-15; those of b[j] are columns 0-7 at k 0-7 and 8-15, then columns 8-15. So
    // a[i], b[j][0..1] and b[j][2..3] are what mma takes. Every layout repeats after 16 rows, but
    // for an offset.
    __device__ void load(const uint4* buffer, int k) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int a_row = warp / 2 * WM + lane % 16;
        const int b_row = BM + warp % 2 * WN + lane / 16 * 8 + lane % 8;
        const uint4* a_at = buffer + Layout::ab(a_row, 2 * k + lane / 16);
        const uint4* b_at = buffer + Layout::ab(b_row, 2 * k + lane / 8 % 2);
#pragma unroll
        for (int i = 0; i < WM / 16; ++i)
            ldmatrix(a[i], a_at + Layout::ab(16 * i, 0));
#pragma unroll
        for (int j = 0; j < WN / 16; ++j)
            ldmatrix(b[j], b_at + Layout::ab(16 * j, 0));
    }
};

// The same of B by rows, whose matrices ldmatrix transposes: their rows are those of k, of 8
// columns each. Lanes point to rows k of columns 0-7, then of columns 8-15.
template <typename Layout>
struct FragmentsOfRows : Fragments<Layout> {
    __device__ void load(const uint4* buffer, int k) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const uint4* a_at = buffer + Layout::ab(warp / 2 * WM + lane % 16, 2 * k + lane / 16);
        const uint4* b_at = buffer + BM * Layout::AB_ROW;
        const int row = 16 * k + lane % 16, chunk = warp % 2 * (WN / 8) + lane / 16;
#pragma unroll
        for (int i = 0; i < WM / 16; ++i)
            ldmatrix(this->a[i], a_at + Layout::ab(16 * i, 0));
#pragma unroll
        for (int j = 0; j < WN / 16; ++j)
            ldmatrix_trans(this->b[j], b_at + Layout::c(row, chunk + 2 * j));
    }
};

// What a kernel copies and loads, of B by rows or by columns.
template <bool B_BY_ROWS>
using RowsOf = std::conditional_t<B_BY_ROWS, RowsOfBoth, Rows>;
template <typename Layout, bool B_BY_ROWS>
using FragmentsOf = std::conditional_t<B_BY_ROWS, FragmentsOfRows<Layout>, Fragments<Layout>>;

// Right, left, right, left: a row of products ends at the b that the next row starts with.
template <typename T, typename Acc, typename Layout>
__device__ inline void multiply(WarpTile<Acc>& c, const Fragments<Layout>& f) {
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int n = 0; n < WN / 8; ++n) {
            const int j = i % 2 ? WN / 8 - 1 - n : n;
            mma<T>(c.piece[i][j].x, f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
        }
}

template <typename T>
__device__ inline uint32_t pair(const Piece<float>& piece, int half) {
    return pack<T>(piece.x[2 * half], piece.x[2 * half + 1]);
}

template <typename T>
__device__ inline uint32_t pair(const Piece<__half>& piece, int half) {
    return piece.x[half];
}

// Registers -> shared memory -> global memory, so that a warp stores whole lines. Every thread must
// be done with `shared`. Chunk c of row r of the tile is staged at chunk Layout::c(r, c).
template <typename T, typename Layout, typename Acc>
__device__ inline void store_tile(const Call& call, Origin tile, const WarpTile<Acc>& c,
                                  uint4* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t* words = reinterpret_cast<uint32_t*>(shared);
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp / 2 * WM + i * 16 + half * 8 + lane / 4;
                const int chunk = warp % 2 * (WN / 8) + j;
                words[Layout::c(row, chunk) * 4 + lane % 4] = pair<T>(c.piece[i][j], half);
            }
    __syncthreads();
    store_rows<BM>(call, tile.row, tile.col,
                   [&](int row, int chunk) { return shared[Layout::c(row, chunk)]; });
}
