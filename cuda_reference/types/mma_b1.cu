/* mma_b1: mma.sync of single bits: and or xor, then the count of ones, added to s32.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: BMMA; sm_90: BMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          xor is native on sm_80 and emulated on sm_90.
*/

#include "one_mma.cuh"

#define KERNEL(op, m, k, n, na, nb)                                                           \
    MMA(mma_m##m##n8k##k##_row_col_s32_b1_b1_s32_##op##_popc,                                 \
        "mma.sync.aligned.m" #m "n8k" #k ".row.col.s32.b1.b1.s32." #op ".popc", row, col, n,  \
        na, nb, n, "r", Fragments<uint32_t, 1, m, k>)
#define ROW(op, m, k, n, na, nb)                                     \
    {"mma.m" #m "n8k" #k ".row.col.s32.b1.b1.s32." #op ".popc",      \
     mma_m##m##n8k##k##_row_col_s32_b1_b1_s32_##op##_popc, 0},

#define SHAPES(X, op) X(op, 8, 128, 2, 1, 1) X(op, 16, 128, 4, 2, 1) X(op, 16, 256, 4, 4, 2)

#define ALL(X) SHAPES(X, and) SHAPES(X, xor)

ALL(KERNEL)
MMA_RUN(ALL(ROW))
