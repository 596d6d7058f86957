/* mma_f64: mma.sync m8n8k4 and m16n8k4, k8 and k16 of f64, in each rounding mode.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: DMMA; sm_90: DMMA
Needs         sm_80, m16n8 sm_90; one warp; lines on multiples of 32 bytes
Note          Without a mode, rn: to nearest, ties to even.
*/

#include "one_mma.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define ON_SM_90(text) "//"  // never launched
#else
#define ON_SM_90(text) text
#endif
#define ANYWHERE(text) text

#define KERNEL(suffix, mode, m, k, na, nb, n, where)                             \
    MMA(mma_m##m##n8k##k##_row_col##suffix##_f64_f64_f64_f64,                    \
        where("mma.sync.aligned.m" #m "n8k" #k ".row.col" mode ".f64.f64.f64.f64"), row, col, n, \
        na, nb, n, "d", Fragments<double, 64, m, k>)
#define ROW(suffix, mode, m, k, na, nb, n, where)                    \
    {"mma.m" #m "n8k" #k ".row.col" mode ".f64.f64.f64.f64",         \
     mma_m##m##n8k##k##_row_col##suffix##_f64_f64_f64_f64, 0},

#define SHAPES(X, suffix, mode)                    \
    X(suffix, mode, 8, 4, 1, 1, 2, ANYWHERE)       \
    X(suffix, mode, 16, 4, 2, 1, 4, ON_SM_90)      \
    X(suffix, mode, 16, 8, 4, 2, 4, ON_SM_90)      \
    X(suffix, mode, 16, 16, 8, 4, 4, ON_SM_90)

#define ALL(X)              \
    SHAPES(X, , "")         \
    SHAPES(X, _rn, ".rn")   \
    SHAPES(X, _rz, ".rz")   \
    SHAPES(X, _rm, ".rm")   \
    SHAPES(X, _rp, ".rp")

ALL(KERNEL)
MMA_RUN(ALL(ROW))
