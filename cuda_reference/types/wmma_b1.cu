/* wmma_b1: wmma.mma of single bits: and or xor, then the count of ones, added to s32.

By hand       nothing: wmma.load and wmma.store know the fragments
Signs         sm_80: BMMA; sm_90: BMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Eight elements in a byte, the first in the lowest bit. xor is native on sm_80 and
              emulated on sm_90.
*/

#include "one_wmma.cuh"

#define KERNEL(op)                                                                             \
    WMMA(wmma_m8n8k128_row_col_s32_b1_b1_s32_##op##_popc,                                                        \
         "wmma.mma." #op ".popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", "m8n8k128",      \
         "row", "col", "b1", "s32", "s32", "b32", LIST_1("a"), LIST_1("b"), LIST_2("c"),       \
         LIST_2("d"), "")
#define ROW(op) \
    {"wmma.m8n8k128.row.col.s32.b1.b1.s32." #op ".popc", wmma_m8n8k128_row_col_s32_b1_b1_s32_##op##_popc, 0},

#define ALL(X) X(and) X(xor)

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
