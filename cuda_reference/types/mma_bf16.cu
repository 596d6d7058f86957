/* mma_bf16: mma.sync m16n8k8 and m16n8k16 of bf16, with f32 accumulators.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: HMMA, no LDSM; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
*/

#include "one_mma.cuh"

#define KERNEL(k, na, nb)                                                        \
    MMA(mma_m16n8k##k##_row_col_f32_bf16_bf16_f32,                               \
        "mma.sync.aligned.m16n8k" #k ".row.col.f32.bf16.bf16.f32", row, col, 4, na, nb, 4, \
        "r", Fragments<uint32_t, 16, 16, k>)
#define ROW(k, na, nb)                               \
    {"mma.m16n8k" #k ".row.col.f32.bf16.bf16.f32",   \
     mma_m16n8k##k##_row_col_f32_bf16_bf16_f32, 0},

#define ALL(X) X(8, 2, 1) X(16, 4, 2)

ALL(KERNEL)
MMA_RUN(ALL(ROW))
