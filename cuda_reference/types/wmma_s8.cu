/* wmma_s8: wmma.mma of s8 and of u8, with s32 accumulators that wrap or saturate.

By hand       nothing: wmma.load and wmma.store know the fragments
Signs         sm_80: IMMA; sm_90: IMMA, no IGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Each wmma.mma is two IMMA.16816. Wrapped sums are exact modulo 2^32; satfinite clamps
              the sum at every instruction, so a longer sum then depends on the order of K.
*/

#include "one_wmma.cuh"

#define A_m16n16k16 LIST_2("a")
#define B_m16n16k16 LIST_2("b")
#define A_m8n32k16 LIST_1("a")
#define B_m8n32k16 LIST_4("b")
#define A_m32n8k16 LIST_4("a")
#define B_m32n8k16 LIST_1("b")

#define KERNEL(type, suffix, limit, shape, A, B)                                                  \
    WMMA(wmma_##shape##_##A##_##B##_s32_##type##_##type##_s32##suffix,                                               \
         "wmma.mma.sync.aligned." #A "." #B "." #shape ".s32." #type "." #type ".s32" limit,      \
         #shape, #A, #B, #type, "s32", "s32", "b32", A_##shape, B_##shape, LIST_8("c"),           \
         LIST_8("d"), "")
#define ROW(type, suffix, limit, shape, A, B)                               \
    {"wmma." #shape "." #A "." #B ".s32." #type "." #type ".s32" limit,     \
     wmma_##shape##_##A##_##B##_s32_##type##_##type##_s32##suffix, 0},

#define ALL(X)                                      \
    FOR_SHAPES(X, s8, , "")                         \
    FOR_SHAPES(X, s8, _satfinite, ".satfinite")     \
    FOR_SHAPES(X, u8, , "")                         \
    FOR_SHAPES(X, u8, _satfinite, ".satfinite")

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
