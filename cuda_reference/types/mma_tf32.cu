/* mma_tf32: mma.sync m16n8k4 and m16n8k8 of tf32, with f32 accumulators.

By hand       which thread holds which element; the rounding of fp32 to tf32
Signs         sm_80: HMMA, no LDSM; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
*/

#include "one_mma.cuh"

#define KERNEL(k, na, nb)                                                        \
    MMA(mma_m16n8k##k##_row_col_f32_tf32_tf32_f32,                               \
        "mma.sync.aligned.m16n8k" #k ".row.col.f32.tf32.tf32.f32", row, col, 4, na, nb, 4, \
        "r", Fragments<uint32_t, 32, 16, k>)
#define ROW(k, na, nb)                               \
    {"mma.m16n8k" #k ".row.col.f32.tf32.tf32.f32",   \
     mma_m16n8k##k##_row_col_f32_tf32_tf32_f32, 0},

#define ALL(X) X(4, 2, 1) X(8, 4, 2)

ALL(KERNEL)
MMA_RUN(ALL(ROW))
