/* wgmma_s8: wgmma of s8 and u8, mixed too, in shared memory: every N and swizzle, satfinite or not.

By hand       the shared-memory layouts, the descriptors, the fences, the accumulator's fragment
Signs         sm_90: IGMMA, no IMMA
Needs         sm_90a; one warpgroup; A by rows and B by columns, lines on multiples of 32 bytes
Note          Above 32, N is a multiple of 16. satfinite clamps the sum at every instruction.
*/

#include "one_wgmma.cuh"

#define KERNEL(AB, D, N, registers)                                                     \
    WGMMA_KERNEL(wgmma_m64n##N##k32_s8, N, 8, registers, false, false,                  \
                 WGMMA(0, registers, "m64n" #N "k32.s32.s8.s8", "")                     \
                 WGMMA(1, registers, "m64n" #N "k32.s32.s8.u8", "")                     \
                 WGMMA(2, registers, "m64n" #N "k32.s32.u8.s8", "")                     \
                 WGMMA(3, registers, "m64n" #N "k32.s32.u8.u8", "")                     \
                 WGMMA(4, registers, "m64n" #N "k32.satfinite.s32.s8.s8", "")           \
                 WGMMA(5, registers, "m64n" #N "k32.satfinite.s32.s8.u8", "")           \
                 WGMMA(6, registers, "m64n" #N "k32.satfinite.s32.u8.s8", "")           \
                 WGMMA(7, registers, "m64n" #N "k32.satfinite.s32.u8.u8", ""))
#define ROW(N, types, variant) \
    {"wgmma.m64n" #N "k32.row.col.s32" types, wgmma_m64n##N##k32_s8, variant},
#define ROWS(AB, D, N, registers)                                                   \
    ROW(N, ".s8.s8", 0) ROW(N, ".s8.u8", 1) ROW(N, ".u8.s8", 2) ROW(N, ".u8.u8", 3) \
    ROW(N, ".s8.s8.satfinite", 4) ROW(N, ".s8.u8.satfinite", 5)                     \
    ROW(N, ".u8.s8.satfinite", 6) ROW(N, ".u8.u8.satfinite", 7)

#define ALL(X) FOR_INTEGER_N(IN_32_BITS, X, s8, s32)

ALL(KERNEL)
WGMMA_RUN(ALL(ROWS))
