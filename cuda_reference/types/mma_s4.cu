/* mma_s4: mma.sync of s4 and u4, mixed too, with s32 accumulators that wrap or saturate.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: IMMA; sm_90: IMMA, no IGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Native on sm_80; sm_90 unpacks the operands to bytes and multiplies those.
*/

#include "one_mma.cuh"

#define KERNEL(a, b, suffix, limit, m, k, n, na, nb)                                           \
    MMA(mma_m##m##n8k##k##_row_col_s32_##a##_##b##_s32##suffix,                                \
        "mma.sync.aligned.m" #m "n8k" #k ".row.col" limit ".s32." #a "." #b ".s32", row, col,  \
        n, na, nb, n, "r", Fragments<uint32_t, 4, m, k>)
#define ROW(a, b, suffix, limit, m, k, n, na, nb)                             \
    {"mma.m" #m "n8k" #k ".row.col.s32." #a "." #b ".s32" limit,              \
     mma_m##m##n8k##k##_row_col_s32_##a##_##b##_s32##suffix, 0},

#define SHAPES(X, a, b, suffix, limit)                                                         \
    X(a, b, suffix, limit, 8, 32, 2, 1, 1)                                                     \
    X(a, b, suffix, limit, 16, 32, 4, 2, 1)                                                    \
    X(a, b, suffix, limit, 16, 64, 4, 4, 2)
#define LIMITS(X, a, b) SHAPES(X, a, b, , "") SHAPES(X, a, b, _satfinite, ".satfinite")

#define ALL(X) LIMITS(X, s4, s4) LIMITS(X, s4, u4) LIMITS(X, u4, s4) LIMITS(X, u4, u4)

ALL(KERNEL)
MMA_RUN(ALL(ROW))
