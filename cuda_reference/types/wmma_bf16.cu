/* wmma_bf16: wmma.mma of bf16, with f32 accumulators.

By hand       nothing: wmma.load and wmma.store know the fragments
Signs         sm_80: HMMA; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Each wmma.mma is two HMMA.16816.F32.BF16. bf16 holds integers exactly only to 256.
*/

#include "one_wmma.cuh"

// Unlike f16's, these fragments hold no element twice: their sizes follow from the shape.
#define A_m16n16k16 LIST_4("a")
#define B_m16n16k16 LIST_4("b")
#define A_m8n32k16 LIST_2("a")
#define B_m8n32k16 LIST_8("b")
#define A_m32n8k16 LIST_8("a")
#define B_m32n8k16 LIST_2("b")

#define KERNEL(type, shape, A, B)                                                           \
    WMMA(wmma_##shape##_##A##_##B##_f32_##type##_##type##_f32,                                                 \
         "wmma.mma.sync.aligned." #A "." #B "." #shape ".f32." #type "." #type ".f32",      \
         #shape, #A, #B, #type, "f32", "f32", "b32", A_##shape, B_##shape, LIST_8("c"),     \
         LIST_8("d"), "")
#define ROW(type, shape, A, B)                                        \
    {"wmma." #shape "." #A "." #B ".f32." #type "." #type ".f32",     \
     wmma_##shape##_##A##_##B##_f32_##type##_##type##_f32, 0},

#define ALL(X) FOR_SHAPES(X, bf16)

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
