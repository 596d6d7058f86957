/* wgmma_warp_specialized: one warpgroup loads, two multiply.

Adds to       wgmma_pipelined: a producer and two consumers with their own registers, 128x256 tile
Mirrors       warp_specialized
By hand       the roles, full and empty barriers, registers handed over by setmaxnreg
Signs         sm_90: HGMMA.64x256x16, UTMALDG, SYNCS, USETMAXREG, no HMMA, no LDGSTS
Needs         sm_90; fp16 or bf16, fp32 accumulator; layout NT; 16-byte aligned rows of A and B
*/
#include "roles.cuh"

constexpr int STAGES = 4;

template <typename T>
struct Shared {
    Stage<T> stages[STAGES];
    uint64_t full[STAGES], empty[STAGES];
};

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_warp_specialized_kernel(const __grid_constant__ CUtensorMap map_a,
                                  const __grid_constant__ CUtensorMap map_b, T* c, int M, int N,
                                  int K, int64_t ldc, int order, int group) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    Shared<T>& shared = *reinterpret_cast<Shared<T>*>(dynamic);
    const Tile tile = raster(blockIdx.x, ceil_div(M, BM), ceil_div(N, BN), order, group);
    const int row = tile.row * BM, col = tile.col * BN;
    const int steps = ceil_div(K, BK);

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (threadIdx.x < 128) {
        give_registers();
        if (threadIdx.x == 0) {
            for (int step = 0; step < steps; ++step, ring.next()) {
                Stage<T>& to = shared.stages[ring.stage];
                uint64_t* full = &shared.full[ring.stage];
                barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);  // free at first
                barrier_expect(full, sizeof to.a + sizeof to.b);
                tma_load(to.a, &map_a, row, step * BK, full);
                tma_load(to.b, &map_b, col, step * BK, full);
            }
        }
    } else {
        take_registers();
        const int consumer = threadIdx.x / 128 - 1;
        float acc[BN / 2];
        int before = 0;  // the stage of the step before
        for (int step = 0; step < steps; ++step, ring.next()) {
            const Stage<T>& from = shared.stages[ring.stage];
            barrier_wait(&shared.full[ring.stage], ring.parity);
            multiply(acc, from.a + consumer * 64 * BK, from.b, step == 0);
            wgmma_wait<1>();
            if (step > 0 && threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[before]);
            before = ring.stage;
        }
        wgmma_wait<0>();
        store_accumulator<BN>(acc, c, ldc, row + consumer * 64, col, M, N);
    }
}

template <typename T>
const char* launch_type(const Call& call) {
    CUtensorMap map_a, map_b;
    TRY_MAP(make_map(&map_a, call.a, call.type, call.M, call.K, call.lda, BM));
    TRY_MAP(make_map(&map_b, call.b, call.type, call.N, call.K, call.ldb, BN));
    const auto kernel = wgmma_warp_specialized_kernel<T>;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Shared<T>)));
    const int64_t tiles = ceil_div(call.M, int64_t(BM)) * ceil_div(call.N, int64_t(BN));
    kernel<<<tiles, THREADS, sizeof(Shared<T>), call.stream>>>(
        map_a, map_b, static_cast<T*>(call.c), call.M, call.N, call.K, call.ldc, call.order,
        call.group);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Call* call) {
    return call->type == BF16 ? launch_type<__nv_bfloat16>(*call) : launch_type<__half>(*call);
}
