/* wmma_naive: one warp per 16x16 of C, operands straight from global memory.

Adds to       simt_naive: tensor cores, through the wmma functions of CUDA C++
Mirrors       naive
By hand       the k loop; ragged or unaligned 16x16 tiles pass through zero-filled shared memory
Signs         sm_80: HMMA, no LDGSTS; sm_90: HMMA, no LDGSTS, no HGMMA
Needs         sm_80; fp16; any rows
*/
#include <mma.h>

#include "epilogue.cuh"

namespace wmma = nvcuda::wmma;

constexpr int TILE = 16;
constexpr int WARP_ROWS = 4, WARP_COLS = 2;  // a block of 8 warps shares rows in L1: 64 x 32 of C

// Rows of A or of B, from a warp's first row on. wmma reads whole 16 x 16 tiles whose rows are
// 32-byte aligned; all others are staged, with zeros for what is outside.
struct Operand {
    const __half* first;
    int64_t ld, K;
    int count;    // rows that exist, up to 16
    bool direct;  // can wmma read them?

    __device__ Operand(const void* matrix, int64_t ld, int64_t row, int64_t rows, int64_t K)
        : first(static_cast<const __half*>(matrix) + row * ld),
          ld(ld),
          K(K),
          count(static_cast<int>(min(rows - row, int64_t{TILE}))),
          direct(count == TILE && reinterpret_cast<uintptr_t>(matrix) % 32 == 0 &&
                 ld % TILE == 0 && ld < (1 << 27)) {}

    template <typename Fragment>
    __device__ void load(Fragment& fragment, int64_t k, __half* staged) const {
        if (direct && k + TILE <= K) {
            wmma::load_matrix_sync(fragment, first + k, static_cast<unsigned>(ld));
            return;
        }
        __syncwarp();  // the last fragment has been read
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < TILE * TILE; i += 32) {
            const int row = i / TILE, col = i % TILE;
            staged[i] = row < count && k + col < K ? first[row * ld + k + col] : __half{};
        }
        __syncwarp();
        wmma::load_matrix_sync(fragment, staged, TILE);
    }
};

template <typename Acc>
__global__ void __launch_bounds__(WARP_ROWS * WARP_COLS * 32)
    wmma_naive_kernel(const __grid_constant__ Call call) {
    __shared__ __align__(32) float tiles[WARP_ROWS * WARP_COLS][TILE * TILE];
    const int warp = threadIdx.x / 32;
    __half* staged = reinterpret_cast<__half*>(tiles[warp]);  // 16 x 16 of A, then of B

    const int64_t cols = ceil_div<int64_t>(call.N, WARP_COLS * TILE);
    const int64_t row = (blockIdx.x / cols * WARP_ROWS + warp / WARP_COLS) * TILE;
    const int64_t col = (blockIdx.x % cols * WARP_COLS + warp % WARP_COLS) * TILE;
    if (row >= call.M || col >= call.N) return;  // a whole warp; no block barrier follows

    const Operand a_rows(call.a, call.lda, row, call.M, call.K);
    const Operand b_rows(call.b, call.ldb, col, call.N, call.K);

    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, Acc> acc;
    wmma::fill_fragment(acc, Acc{});
#pragma unroll 4  // loads of four steps in flight
    for (int64_t k = 0; k < call.K; k += TILE) {
        wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::col_major> b;
        a_rows.load(a, k, staged);
        b_rows.load(b, k, staged + TILE * TILE);
        wmma::mma_sync(acc, a, b, acc);
    }

    __syncwarp();  // all fragments have been read
    Acc* c = reinterpret_cast<Acc*>(tiles[warp]);
    wmma::store_matrix_sync(c, acc, TILE, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < TILE * TILE; i += 32) {
        const int64_t r = row + i / TILE, n = col + i % TILE;
        if (r < call.M && n < call.N)
            narrow(c[i], static_cast<__half*>(call.c)[r * call.ldc + n]);
    }
}

EXPORT launch(const Call* call) {
    return launch_tiles(*call, WARP_ROWS * TILE, WARP_COLS * TILE, WARP_ROWS * WARP_COLS * 32, 0,
                        wmma_naive_kernel<float>, wmma_naive_kernel<__half>, nullptr);
}
