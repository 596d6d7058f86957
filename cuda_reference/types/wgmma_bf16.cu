/* wgmma_bf16: wgmma of bf16 in shared memory: every N, major and swizzle.

By hand       the shared-memory layouts, the descriptors, the fences, the accumulator's fragment
Signs         sm_90: HGMMA, no HMMA
Needs         sm_90a; one warpgroup; lines on multiples of 32 bytes
Note          The swizzle is not in the instruction: it is in the descriptor and in the addresses.
*/

#include "one_wgmma.cuh"

#define ALL(X) FOR_N(IN_32_BITS, X, bf16, f32)

ALL(WGMMA_16)
WGMMA_RUN(ALL(WGMMA_16_ROWS))
