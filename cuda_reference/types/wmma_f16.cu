/* wmma_f16: wmma.mma of f16, with f16 and f32 accumulators in and out.

By hand       nothing: wmma.load and wmma.store know the fragments
Signs         sm_80: HMMA; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Each wmma.mma is two HMMA.16816.
*/

#include "one_wmma.cuh"

#define LIST_f16(r) LIST_4(r)
#define LIST_f32(r) LIST_8(r)

#define KERNEL(D, C, shape, A, B)                                                                \
    WMMA(wmma_##shape##_##A##_##B##_##D##_##C,                                                   \
         "wmma.mma.sync.aligned." #A "." #B "." #shape "." #D "." #C, #shape, #A, #B, "f16", #C, \
         #D, "b32", LIST_8("a"), LIST_8("b"), LIST_##C("c"), LIST_##D("d"), "")
#define ROW(D, C, shape, A, B) \
    {"wmma." #shape "." #A "." #B "." #D "." #C, wmma_##shape##_##A##_##B##_##D##_##C, 0},

#define ALL(X)              \
    FOR_SHAPES(X, f16, f16) \
    FOR_SHAPES(X, f16, f32) \
    FOR_SHAPES(X, f32, f16) \
    FOR_SHAPES(X, f32, f32)

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
