/* wgmma_fp8: wgmma of e4m3 and e5m2, mixed too, in shared memory: every N and swizzle.

By hand       the shared-memory layouts, the descriptors, the fences, the accumulator's fragment
Signs         sm_90: QGMMA, no HMMA
Needs         sm_90a; one warpgroup; A by rows and B by columns, lines on multiples of 32 bytes
Note          The machine adds the products of one instruction with about 14 bits, for f32 sums too.
*/

#include "one_wgmma.cuh"

#define KERNEL(AB, D, N, registers)                                                     \
    WGMMA_KERNEL(wgmma_m64n##N##k32_##D##_##AB, N, 8, registers, false, false,          \
                 WGMMA(0, registers, "m64n" #N "k32." #D ".e4m3.e4m3", ", 1, 1")        \
                 WGMMA(1, registers, "m64n" #N "k32." #D ".e4m3.e5m2", ", 1, 1")        \
                 WGMMA(2, registers, "m64n" #N "k32." #D ".e5m2.e4m3", ", 1, 1")        \
                 WGMMA(3, registers, "m64n" #N "k32." #D ".e5m2.e5m2", ", 1, 1"))
#define ROW(AB, D, N, types, variant) \
    {"wgmma.m64n" #N "k32.row.col." #D types, wgmma_m64n##N##k32_##D##_##AB, variant},
#define ROWS(AB, D, N, registers)                                                   \
    ROW(AB, D, N, ".e4m3.e4m3", 0) ROW(AB, D, N, ".e4m3.e5m2", 1)                   \
    ROW(AB, D, N, ".e5m2.e4m3", 2) ROW(AB, D, N, ".e5m2.e5m2", 3)

#define ALL(X)                       \
    FOR_N(IN_32_BITS, X, fp8, f32)   \
    FOR_N(IN_16_BITS, X, fp8, f16)

ALL(KERNEL)
WGMMA_RUN(ALL(ROWS))
