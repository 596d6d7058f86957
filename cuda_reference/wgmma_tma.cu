/* wgmma_tma: one thread loads whole tiles by TMA.

Adds to       wgmma_m64n8k16: a 128x128x64 tile; tensor maps, 128-byte swizzle, an mbarrier
Mirrors       tma
By hand       the tensor maps, bytes expected by the barrier, its parity, the swizzled descriptor
Signs         sm_90: HGMMA.64x128x16, UTMALDG, SYNCS, no HMMA, no LDGSTS
Needs         sm_90; fp16 or bf16, fp32 accumulator; layout NT; 16-byte aligned rows of A and B
*/
#include "raster.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int BM = 128, BN = 128, BK = 64;

template <typename T>
struct Stage {
    alignas(1024) T a[BM * BK];
    alignas(1024) T b[BN * BK];
};

template <typename T>
__global__ void __launch_bounds__(128)
    wgmma_tma_kernel(const __grid_constant__ CUtensorMap map_a,
                     const __grid_constant__ CUtensorMap map_b, T* c, int M, int N, int K,
                     int64_t ldc, int order, int group) {
    __shared__ Stage<T> stage;
    __shared__ uint64_t full;
    const Tile tile = raster(blockIdx.x, ceil_div(M, BM), ceil_div(N, BN), order, group);
    const int row = tile.row * BM, col = tile.col * BN;

    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        barrier_init_fence();
    }
    __syncthreads();

    float acc[2][BN / 2] = {};
    const uint64_t desc_a = swizzled_descriptor(stage.a), desc_b = swizzled_descriptor(stage.b);
    const int steps = ceil_div(K, BK);
    for (int step = 0; step < steps; ++step) {
        if (threadIdx.x == 0) {
            barrier_expect(&full, sizeof stage.a + sizeof stage.b);
            tma_load(stage.a, &map_a, row, step * BK, &full);
            tma_load(stage.b, &map_b, col, step * BK, &full);
        }
        barrier_wait(&full, step % 2);

        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
            wgmma_m64n128k16<T>(acc[0], desc_a + 2 * k, desc_b + 2 * k, 1);
            wgmma_m64n128k16<T>(acc[1], desc_a + 64 * BK * 2 / 16 + 2 * k, desc_b + 2 * k, 1);
        }
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // the next copy overwrites what all four warps have read
    }
    store_accumulator<BN>(acc[0], c, ldc, row, col, M, N);
    store_accumulator<BN>(acc[1], c, ldc, row + 64, col, M, N);
}

template <typename T>
const char* launch_type(const Call& call) {
    CUtensorMap map_a, map_b;
    TRY_MAP(make_map(&map_a, call.a, call.type, call.M, call.K, call.lda, BM));
    TRY_MAP(make_map(&map_b, call.b, call.type, call.N, call.K, call.ldb, BN));
    const int64_t tiles = ceil_div(call.M, int64_t(BM)) * ceil_div(call.N, int64_t(BN));
    wgmma_tma_kernel<T><<<tiles, 128, 0, call.stream>>>(map_a, map_b, static_cast<T*>(call.c),
                                                        call.M, call.N, call.K, call.ldc,
                                                        call.order, call.group);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Call* call) {
    return call->type == BF16 ? launch_type<__nv_bfloat16>(*call) : launch_type<__half>(*call);
}
