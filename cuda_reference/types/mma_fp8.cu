/* mma_fp8: mma.sync m16n8k16 and m16n8k32 of e4m3 and e5m2, mixed too, f32 and f16 sums.

By hand       which thread holds which element of A, B, C and D
Signs         sm_90: HMMA, no QGMMA
Needs         sm_90 here (sm_89 has it); one warp; lines on multiples of 32 bytes
Note          sm_90 converts the operands to f16 and multiplies those: wgmma is the native one.
*/

#include "one_mma.cuh"

#define KERNEL(D, a, b, k, n, na, nb)                                            \
    MMA(mma_m16n8k##k##_row_col_##D##_##a##_##b##_##D,                           \
        "mma.sync.aligned.m16n8k" #k ".row.col." #D "." #a "." #b "." #D, row, col, n, na, nb, n, \
        "r", Fragments<uint32_t, 8, 16, k>)
#define ROW(D, a, b, k, n, na, nb)                               \
    {"mma.m16n8k" #k ".row.col." #D "." #a "." #b "." #D,        \
     mma_m16n8k##k##_row_col_##D##_##a##_##b##_##D, 0},

#define SHAPES(X, a, b)              \
    X(f32, a, b, 16, 4, 2, 1)        \
    X(f32, a, b, 32, 4, 4, 2)        \
    X(f16, a, b, 16, 2, 2, 1)        \
    X(f16, a, b, 32, 2, 4, 2)

#define ALL(X)              \
    SHAPES(X, e4m3, e4m3)   \
    SHAPES(X, e4m3, e5m2)   \
    SHAPES(X, e5m2, e4m3)   \
    SHAPES(X, e5m2, e5m2)

ALL(KERNEL)
MMA_RUN(ALL(ROW))
