/* mma_s8: mma.sync of s8 and u8, mixed too, with s32 accumulators that wrap or saturate.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: IMMA; sm_90: IMMA, no IGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          satfinite clamps the sum at every instruction.
*/

#include "one_mma.cuh"

#define KERNEL(a, b, suffix, limit, m, k, n, na, nb)                                           \
    MMA(mma_m##m##n8k##k##_row_col_s32_##a##_##b##_s32##suffix,                                \
        "mma.sync.aligned.m" #m "n8k" #k ".row.col" limit ".s32." #a "." #b ".s32", row, col,  \
        n, na, nb, n, "r", Fragments<uint32_t, 8, m, k>)
#define ROW(a, b, suffix, limit, m, k, n, na, nb)                             \
    {"mma.m" #m "n8k" #k ".row.col.s32." #a "." #b ".s32" limit,              \
     mma_m##m##n8k##k##_row_col_s32_##a##_##b##_s32##suffix, 0},

#define SHAPES(X, a, b, suffix, limit)                                                         \
    X(a, b, suffix, limit, 8, 16, 2, 1, 1)                                                     \
    X(a, b, suffix, limit, 16, 16, 4, 2, 1)                                                    \
    X(a, b, suffix, limit, 16, 32, 4, 4, 2)
#define LIMITS(X, a, b) SHAPES(X, a, b, , "") SHAPES(X, a, b, _satfinite, ".satfinite")

#define ALL(X) LIMITS(X, s8, s8) LIMITS(X, s8, u8) LIMITS(X, u8, s8) LIMITS(X, u8, u8)

ALL(KERNEL)
MMA_RUN(ALL(ROW))
