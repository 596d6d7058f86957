/* mma_naive: one warp per 16x8 of C, ldmatrix and mma.sync.

Adds to       simt_naive: tensor cores, fed from shared memory that one warp fills for itself
Mirrors       naive
By hand       which lane holds which element of the fragments of A, B and C
Signs         sm_80: HMMA, LDSM, no LDGSTS; sm_90: HMMA, LDSM, no LDGSTS, no HGMMA
Needs         sm_80; fp16 or bf16; layout NT or NN; any rows
*/
#include "mma_tile.cuh"

constexpr int TILE_M = 16, TILE_N = 8, TILE_K = 16;
constexpr int WARP_ROWS = 2, WARP_COLS = 4;  // a block of 8 warps shares rows in L1: 32 x 32 of C

// 8 elements of a row, zeros from `inside` elements on.
__device__ inline uint4 load_chunk(const uint16_t* from, int inside, bool aligned) {
    if (inside >= 8 && aligned) return __ldg(reinterpret_cast<const uint4*>(from));
    return load_part(from, inside);
}

__device__ inline bool is_aligned(const void* matrix, int64_t ld) {
    return reinterpret_cast<uintptr_t>(matrix) % 16 == 0 && ld % 8 == 0;
}

template <typename T, typename Acc, bool B_BY_ROWS>
__global__ void __launch_bounds__(WARP_ROWS * WARP_COLS * 32)
    mma_naive_kernel(const __grid_constant__ Call call) {
    __shared__ uint4 a_tiles[WARP_ROWS * WARP_COLS][TILE_M * 2];  // 2 chunks of 8 elements a row
    __shared__ uint4 b_tiles[WARP_ROWS * WARP_COLS][TILE_N * 2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4 *a_tile = a_tiles[warp], *b_tile = b_tiles[warp];

    const int64_t cols = ceil_div<int64_t>(call.N, WARP_COLS * TILE_N);
    const int64_t row = (blockIdx.x / cols * WARP_ROWS + warp / WARP_COLS) * TILE_M;
    const int64_t col = (blockIdx.x % cols * WARP_COLS + warp % WARP_COLS) * TILE_N;
    if (row >= call.M || col >= call.N) return;  // a whole warp; no block barrier follows

    // Lane l copies chunk l % 2 of row l / 2 of A, and lanes 0 to 15 also of column l / 2 of B; or,
    // of B by rows, row l, which is one chunk.
    const int64_t a_row = row + lane / 2, b_row = col + lane / 2;
    const int chunk = lane % 2 * 8;
    const uint16_t* a = static_cast<const uint16_t*>(call.a) + a_row * call.lda + chunk;
    const uint16_t* b = static_cast<const uint16_t*>(call.b) +
                        (B_BY_ROWS ? lane * call.ldb + col : b_row * call.ldb + chunk);
    const bool a_aligned = is_aligned(call.a, call.lda), b_aligned = is_aligned(call.b, call.ldb);
    const bool a_inside = a_row < call.M, b_inside = b_row < call.N;

    Piece<Acc> acc = {};
    for (int64_t k = 0; k < call.K; k += TILE_K) {
        const int left = static_cast<int>(min(call.K - k, int64_t{TILE_K})) - chunk;
        const uint4 a_chunk = load_chunk(a + k, a_inside ? left : 0, a_aligned);
        if (lane < TILE_N * 2) {
            if constexpr (B_BY_ROWS) {
                const int columns = static_cast<int>(min(call.N - col, int64_t{TILE_N}));
                const int inside = k + lane < call.K ? columns : 0;
                b_tile[lane] = load_chunk(b + k * call.ldb, inside, b_aligned);
            } else {
                b_tile[lane] = load_chunk(b + k, b_inside ? left : 0, b_aligned);
            }
        }
        a_tile[lane] = a_chunk;
        __syncwarp();
        uint32_t a_fragment[4], b_fragment[2];
        ldmatrix(a_fragment, a_tile + lane % 16 * 2 + lane / 16);
        if constexpr (B_BY_ROWS)
            ldmatrix_trans(b_fragment, b_tile + lane % 16);
        else
            ldmatrix(b_fragment, b_tile + lane % 8 * 2 + lane / 8 % 2);
        mma<T>(acc.x, a_fragment, b_fragment[0], b_fragment[1]);
        __syncwarp();
    }

    // Lane 4g + t holds columns 2t and 2t + 1 of rows g and g + 8.
    for (int half = 0; half < 2; ++half) {
        const int64_t c_row = row + half * 8 + lane / 4, c_col = col + lane % 4 * 2;
        const uint32_t both = pair<T>(acc, half);
        uint16_t* c = static_cast<uint16_t*>(call.c) + c_row * call.ldc + c_col;
        if (c_row < call.M && c_col < call.N) c[0] = static_cast<uint16_t>(both);
        if (c_row < call.M && c_col + 1 < call.N) c[1] = static_cast<uint16_t>(both >> 16);
    }
}

template <bool B_BY_ROWS>
const char* launch_layout(const Call& call) {
    return launch_tiles(call, WARP_ROWS * TILE_M, WARP_COLS * TILE_N, WARP_ROWS * WARP_COLS * 32,
                        0, mma_naive_kernel<__half, float, B_BY_ROWS>,
                        mma_naive_kernel<__half, __half, B_BY_ROWS>,
                        mma_naive_kernel<__nv_bfloat16, float, B_BY_ROWS>, B_BY_ROWS);
}

EXPORT launch(const Call* call) {
    return call->b_rows_are ? launch_layout<true>(*call) : launch_layout<false>(*call);
}
