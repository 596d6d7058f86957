/* wgmma_pipelined: a ring of stages, the next tiles in flight.

Adds to       wgmma_tma: a ring of three stages; copies run two k-steps ahead of WGMMA
Mirrors       tma, pipelined
By hand       the ring, a barrier per stage and its parity, when a stage may be overwritten
Signs         sm_90: HGMMA.64x128x16, UTMALDG, SYNCS, no HMMA, no LDGSTS
Needs         sm_90; fp16 or bf16, fp32 accumulator; layout NT; 16-byte aligned rows of A and B
Note          Two blocks of 96 KiB share an SM, so that one multiplies while the other stores.
*/
#include "raster.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int BM = 128, BN = 128, BK = 64, STAGES = 3;

template <typename T>
struct Stage {
    alignas(1024) T a[BM * BK];
    alignas(1024) T b[BN * BK];
};

template <typename T>
struct Shared {
    Stage<T> stages[STAGES];
    uint64_t full[STAGES];
};

template <typename T>
__global__ void __launch_bounds__(128)
    wgmma_pipelined_kernel(const __grid_constant__ CUtensorMap map_a,
                           const __grid_constant__ CUtensorMap map_b, T* c, int M, int N, int K,
                           int64_t ldc, int order, int group) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    Shared<T>& shared = *reinterpret_cast<Shared<T>*>(dynamic);
    const Tile tile = raster(blockIdx.x, ceil_div(M, BM), ceil_div(N, BN), order, group);
    const int row = tile.row * BM, col = tile.col * BN;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(&shared.full[i], 1);
        barrier_init_fence();
    }
    __syncthreads();

    const int steps = ceil_div(K, BK);
    const auto load = [&](int step) {
        if (threadIdx.x == 0 && step < steps) {
            Stage<T>& to = shared.stages[step % STAGES];
            uint64_t* full = &shared.full[step % STAGES];
            barrier_expect(full, sizeof to.a + sizeof to.b);
            tma_load(to.a, &map_a, row, step * BK, full);
            tma_load(to.b, &map_b, col, step * BK, full);
        }
    };
    for (int step = 0; step < STAGES - 1; ++step) load(step);

    float acc[2][BN / 2] = {};
    Ring<STAGES> ring;
    for (int step = 0; step < steps; ++step, ring.next()) {
        barrier_wait(&shared.full[ring.stage], ring.parity);
        const uint64_t desc_a = swizzled_descriptor(shared.stages[ring.stage].a);
        const uint64_t desc_b = swizzled_descriptor(shared.stages[ring.stage].b);

        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
            wgmma_m64n128k16<T>(acc[0], desc_a + 2 * k, desc_b + 2 * k, 1);
            wgmma_m64n128k16<T>(acc[1], desc_a + 64 * BK * 2 / 16 + 2 * k, desc_b + 2 * k, 1);
        }
        wgmma_commit();
        wgmma_wait<1>();  // the step before this one has read its stage,
        __syncthreads();  // for all four warps,
        load(step + STAGES - 1);  // and that is the stage to fill next
    }
    wgmma_wait<0>();
    store_accumulator<BN>(acc[0], c, ldc, row, col, M, N);
    store_accumulator<BN>(acc[1], c, ldc, row + 64, col, M, N);
}

template <typename T>
const char* launch_type(const Call& call) {
    CUtensorMap map_a, map_b;
    TRY_MAP(make_map(&map_a, call.a, call.type, call.M, call.K, call.lda, BM));
    TRY_MAP(make_map(&map_b, call.b, call.type, call.N, call.K, call.ldb, BN));
    const auto kernel = wgmma_pipelined_kernel<T>;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Shared<T>)));
    const int64_t tiles = ceil_div(call.M, int64_t(BM)) * ceil_div(call.N, int64_t(BN));
    kernel<<<tiles, 128, sizeof(Shared<T>), call.stream>>>(map_a, map_b, static_cast<T*>(call.c),
                                                           call.M, call.N, call.K, call.ldc,
                                                           call.order, call.group);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Call* call) {
    return call->type == BF16 ? launch_type<__nv_bfloat16>(*call) : launch_type<__half>(*call);
}
