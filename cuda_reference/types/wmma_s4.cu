/* wmma_s4: wmma.mma of s4 and of u4, with s32 accumulators that wrap or saturate.

By hand       nothing: wmma.load and wmma.store know the fragments
Signs         sm_80: IMMA; sm_90: IMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          Two elements in a byte, the first in the low half. Native on sm_80 (IMMA.8832); on
              sm_90 the compiler unpacks them to bytes: correct, and slow.
*/

#include "one_wmma.cuh"

#define KERNEL(type, suffix, limit)                                                              \
    WMMA(wmma_m8n8k32_row_col_s32_##type##_##type##_s32##suffix,                                                    \
         "wmma.mma.sync.aligned.row.col.m8n8k32.s32." #type "." #type ".s32" limit, "m8n8k32",   \
         "row", "col", #type, "s32", "s32", "b32", LIST_1("a"), LIST_1("b"), LIST_2("c"),        \
         LIST_2("d"), "")
#define ROW(type, suffix, limit)                                         \
    {"wmma.m8n8k32.row.col.s32." #type "." #type ".s32" limit,           \
     wmma_m8n8k32_row_col_s32_##type##_##type##_s32##suffix, 0},

#define ALL(X)                      \
    X(s4, , "")                     \
    X(s4, _satfinite, ".satfinite") \
    X(u4, , "")                     \
    X(u4, _satfinite, ".satfinite")

ALL(KERNEL)
WMMA_RUN(ALL(ROW))
