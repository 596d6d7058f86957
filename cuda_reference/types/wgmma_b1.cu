/* wgmma_b1: wgmma of single bits in shared memory: and, then the count of ones, added to s32.

By hand       the shared-memory layouts, the descriptors, the fences, the accumulator's fragment
Signs         sm_90: BGMMA, no BMMA
Needs         sm_90a; one warpgroup; A by rows and B by columns, lines on multiples of 32 bytes
Note          Above 32, N is a multiple of 16. wgmma has no xor.
*/

#include "one_wgmma.cuh"

#define KERNEL(AB, D, N, registers)                                                   \
    WGMMA_KERNEL(wgmma_m64n##N##k256_b1, N, 1, registers, false, false,               \
                 WGMMA(0, registers, "m64n" #N "k256.s32.b1.b1.and.popc", ""))
#define ROW(AB, D, N, registers) \
    {"wgmma.m64n" #N "k256.row.col.s32.b1.b1.and.popc", wgmma_m64n##N##k256_b1, 0},

#define ALL(X) FOR_INTEGER_N(IN_32_BITS, X, b1, s32)

ALL(KERNEL)
WGMMA_RUN(ALL(ROW))
