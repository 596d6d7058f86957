/* wmma_tf32: wmma.mma of tf32, with f32 accumulators.

By hand       the rounding of fp32 to tf32, to nearest, halves away from zero
Signs         sm_80: HMMA; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Each wmma.mma is four HMMA.1684.F32.TF32.
*/

#include "one_wmma.cuh"

#define TO_TF32(r) "cvt.rna.tf32.f32 " r ", " r ";\n"

#define KERNEL(shape, A, B)                                                                      \
    WMMA(wmma_##shape##_##A##_##B##_f32_tf32_tf32_f32,                                                        \
         "wmma.mma.sync.aligned." #A "." #B "." #shape ".f32.tf32.tf32.f32", #shape, #A, #B,     \
         "tf32", "f32", "f32", "b32", LIST_4("a"), LIST_4("b"), LIST_8("c"), LIST_8("d"),        \
         TO_TF32("a0") TO_TF32("a1") TO_TF32("a2") TO_TF32("a3")                                 \
         TO_TF32("b0") TO_TF32("b1") TO_TF32("b2") TO_TF32("b3"))
#define ROW(shape, A, B) \
    {"wmma." #shape "." #A "." #B ".f32.tf32.tf32.f32", wmma_##shape##_##A##_##B##_f32_tf32_tf32_f32, 0},

#define ALL(X) FOR_LAYOUTS(X, m16n16k8)

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
