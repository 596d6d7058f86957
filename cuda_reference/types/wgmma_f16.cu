/* wgmma_f16: wgmma of f16 in shared memory: every N, major and swizzle, f32 and f16 sums.

By hand       the shared-memory layouts, the descriptors, the fences, the accumulator's fragment
Signs         sm_90: HGMMA, no HMMA
Needs         sm_90a; one warpgroup; lines on multiples of 32 bytes
Note          The swizzle is not in the instruction: it is in the descriptor and in the addresses.
*/

#include "one_wgmma.cuh"

#define ALL(X)                       \
    FOR_N(IN_32_BITS, X, f16, f32)   \
    FOR_N(IN_16_BITS, X, f16, f16)

ALL(WGMMA_16)
WGMMA_RUN(ALL(WGMMA_16_ROWS))
