/* wmma_f64: wmma.mma of f64, in each rounding mode.

By hand       nothing: wmma.load and wmma.store know the fragments
Signs         sm_80: DMMA; sm_90: DMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          The modes exist only in PTX. Without one, rn: to nearest, ties to even.
*/

#include "one_wmma.cuh"

#define KERNEL(suffix, mode, shape, A, B)                                                      \
    WMMA(wmma_##shape##_##A##_##B##suffix##_f64_f64_f64_f64,                                               \
         "wmma.mma.sync.aligned." #A "." #B "." #shape mode ".f64.f64.f64.f64", #shape, #A, #B, \
         "f64", "f64", "f64", "f64", LIST_1("a"), LIST_1("b"), LIST_2("c"), LIST_2("d"), "")
#define ROW(suffix, mode, shape, A, B)                               \
    {"wmma." #shape "." #A "." #B mode ".f64.f64.f64.f64",           \
     wmma_##shape##_##A##_##B##suffix##_f64_f64_f64_f64, 0},

#define ALL(X)                           \
    FOR_LAYOUTS(X, , "", m8n8k4)         \
    FOR_LAYOUTS(X, _rn, ".rn", m8n8k4)   \
    FOR_LAYOUTS(X, _rz, ".rz", m8n8k4)   \
    FOR_LAYOUTS(X, _rm, ".rm", m8n8k4)   \
    FOR_LAYOUTS(X, _rp, ".rp", m8n8k4)

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
