/* wgmma_tf32: wgmma of tf32 in shared memory: every N and swizzle.

By hand       the shared-memory layouts, the descriptors, the fences, the rounding of fp32 to tf32
Signs         sm_90: HGMMA, no HMMA
Needs         sm_90a; one warpgroup; A by rows and B by columns, lines on multiples of 32 bytes
Note          wgmma drops the low 13 bits of fp32; here it is rounded first, halves away from zero.
*/

#include "one_wgmma.cuh"

#define KERNEL(AB, D, N, registers)                                              \
    WGMMA_KERNEL(wgmma_m64n##N##k8_tf32, N, 32, registers, false, false,         \
                 WGMMA(0, registers, "m64n" #N "k8.f32.tf32.tf32", ", 1, 1"))
#define ROW(AB, D, N, registers) \
    {"wgmma.m64n" #N "k8.row.col.f32.tf32.tf32", wgmma_m64n##N##k8_tf32, 0},

#define ALL(X) FOR_N(IN_32_BITS, X, tf32, f32)

ALL(KERNEL)
WGMMA_RUN(ALL(ROW))
