/* mma_f16: mma.sync m8n8k4, m16n8k8 and m16n8k16 of f16, each fragment spelled out.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: HMMA, no LDSM; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          m8n8k4 is Volta's: a warp multiplies four tiles, here four times the same one. sm_80
              and sm_90 emulate it with FFMA and shuffles; the others are one HMMA each.
*/

#include "one_mma.cuh"

// m8n8k4. Lanes 4 p ... 4 p + 3 and the same plus 16 (`high`) multiply tile p of four.
// q = lane % 4.
// A lane holds four elements of A: of row q + 4 high if A is stored by rows, of column q and rows
// 4 high ... if by columns; of B: of row q and columns 4 high ..., or of column q + 4 high.
// Of C and D: in f16 row q + 4 high; in f32 a 2 x 2 block of neighbours, repeated 4 columns on,
// whose second row is 2 rows down.
struct M8N8K4 {
    using Word = uint32_t;

    template <bool A_BY_ROWS, bool B_BY_ROWS>
    static __device__ void load(const Operands& o, uint32_t* a, uint32_t* b) {
        const int q = threadIdx.x % 4, high = threadIdx.x / 16;
        for (int i = 0; i < 2; ++i) {
            a[i] = A_BY_ROWS ? word<Word, 16>(o.a, o.lda, q + 4 * high, i)
                             : word<Word, 16>(o.a, o.lda, q, 2 * high + i);
            b[i] = B_BY_ROWS ? word<Word, 16>(o.b, o.ldb, q, 2 * high + i)
                             : word<Word, 16>(o.b, o.ldb, q + 4 * high, i);
        }
    }

    // The row and the first column of pair i of C or D, whose elements are half a register or one.
    template <int Each>
    static __device__ int2 place(int i) {
        const int lane = threadIdx.x, high = lane / 16;
        if (Each == 2) return {lane % 2 + 2 * (i % 2) + 4 * high, lane / 2 % 2 * 2 + i / 2 * 4};
        return {lane % 4 + 4 * high, 2 * i};
    }

    template <int Count>
    static __device__ void load_c(const Operands& o, uint32_t* c) {
        for (int i = 0; i < 4; ++i) {
            const int2 at = place<Count / 4>(i);
            load_two<Count / 4>(o.c, o.ldc, at.x, at.y, c + Count / 4 * i);
        }
    }

    template <int Count>
    static __device__ void store(const Operands& o, const uint32_t* d) {
        if (threadIdx.x / 4 % 4) return;  // the other three tiles are the same
        for (int i = 0; i < 4; ++i) {
            const int2 at = place<Count / 4>(i);
            store_two<Count / 4>(o.d, o.ldd, at.x, at.y, d + Count / 4 * i);
        }
    }
};

#define KERNEL(shape, A, B, D, C, ...)                                                       \
    MMA(mma_##shape##_##A##_##B##_##D##_f16_f16_##C,                                         \
        "mma.sync.aligned." #shape "." #A "." #B "." #D ".f16.f16." #C, A, B, __VA_ARGS__)
#define ROW(shape, A, B, D, C, ...)                        \
    {"mma." #shape "." #A "." #B "." #D ".f16.f16." #C,    \
     mma_##shape##_##A##_##B##_##D##_f16_f16_##C, 0},

#define M16N8(k) Fragments<uint32_t, 16, 16, k>
#define VOLTA(X, A, B)                                    \
    X(m8n8k4, A, B, f16, f16, 4, 2, 2, 4, "r", M8N8K4)    \
    X(m8n8k4, A, B, f32, f16, 8, 2, 2, 4, "r", M8N8K4)    \
    X(m8n8k4, A, B, f32, f32, 8, 2, 2, 8, "r", M8N8K4)

#define ALL(X)                                                     \
    VOLTA(X, row, row)                                             \
    VOLTA(X, row, col)                                             \
    VOLTA(X, col, row)                                             \
    VOLTA(X, col, col)                                             \
    X(m16n8k8, row, col, f16, f16, 2, 2, 1, 2, "r", M16N8(8))      \
    X(m16n8k8, row, col, f32, f32, 4, 2, 1, 4, "r", M16N8(8))      \
    X(m16n8k16, row, col, f16, f16, 2, 4, 2, 2, "r", M16N8(16))    \
    X(m16n8k16, row, col, f32, f32, 4, 4, 2, 4, "r", M16N8(16))

ALL(KERNEL)
MMA_RUN(ALL(ROW))
