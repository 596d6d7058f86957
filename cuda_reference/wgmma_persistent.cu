/* wgmma_persistent: one block per SM walks the tiles.

Adds to       wgmma_warp_specialized: a loop over tiles; loads and stores overlap across tiles
Mirrors       persistent
By hand       the ring that runs on across tiles, the staged result, its TMA store and its wait
Signs         sm_90: HGMMA.64x256x16, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no HMMA, no LDGSTS
Needs         sm_90; fp16 or bf16, fp32 accumulator; layout NT; 16-byte aligned rows of A and B
*/
#include "roles.cuh"

constexpr int STAGES = 3;  // with four, the result would not fit beside them

template <typename T>
struct Shared {
    Stage<T> stages[STAGES];
    alignas(1024) T c[CONSUMERS][BN / SWIZZLE_COLS][64 * SWIZZLE_COLS];
    uint64_t full[STAGES], empty[STAGES];
};

// Boxes of 64 columns, swizzled as the tensor map of C says. Eight rows of a store hit all banks.
template <typename T>
__device__ void stage_accumulator(const float (&acc)[BN / 2], T (*boxes)[64 * SWIZZLE_COLS]) {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + half * 8;
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            const int piece = (j ^ row) % 8;  // of 8 columns
            T* to = &boxes[j / 8][row * SWIZZLE_COLS + piece * 8 + thread % 4 * 2];
            *reinterpret_cast<uint32_t*>(to) =
                pack<T>(acc[j * 4 + half * 2], acc[j * 4 + half * 2 + 1]);
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_persistent_kernel(const __grid_constant__ CUtensorMap map_a,
                            const __grid_constant__ CUtensorMap map_b,
                            const __grid_constant__ CUtensorMap map_c, bool store_by_tma, T* c,
                            int M, int N, int K, int64_t ldc, int order, int group) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    Shared<T>& shared = *reinterpret_cast<Shared<T>*>(dynamic);
    const int rows = ceil_div(M, BM), cols = ceil_div(N, BN), steps = ceil_div(K, BK);

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
            for (int i = blockIdx.x; i < rows * cols; i += gridDim.x) {
                const Tile tile = raster(i, rows, cols, order, group);
                for (int step = 0; step < steps; ++step, ring.next()) {
                    Stage<T>& to = shared.stages[ring.stage];
                    uint64_t* full = &shared.full[ring.stage];
                    barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);  // free at first
                    barrier_expect(full, sizeof to.a + sizeof to.b);
                    tma_load(to.a, &map_a, tile.row * BM, step * BK, full);
                    tma_load(to.b, &map_b, tile.col * BN, step * BK, full);
                }
            }
        }
    } else {
        take_registers();
        const int consumer = threadIdx.x / 128 - 1;
        const bool leader = threadIdx.x % 128 == 0;
        float acc[BN / 2];
        for (int i = blockIdx.x; i < rows * cols; i += gridDim.x) {
            const Tile tile = raster(i, rows, cols, order, group);
            const int row = tile.row * BM + consumer * 64, col = tile.col * BN;
            int before = 0;  // the stage of the step before
            for (int step = 0; step < steps; ++step, ring.next()) {
                const Stage<T>& from = shared.stages[ring.stage];
                barrier_wait(&shared.full[ring.stage], ring.parity);
                multiply(acc, from.a + consumer * 64 * BK, from.b, step == 0);
                wgmma_wait<1>();
                if (step > 0 && leader) barrier_arrive(&shared.empty[before]);
                before = ring.stage;
            }
            wgmma_wait<0>();
            if (leader) barrier_arrive(&shared.empty[before]);

            if (store_by_tma) {
                if (leader) tma_store_wait_read<0>();  // the last tile has left its place
                named_barrier(1 + consumer, 128);
                stage_accumulator(acc, shared.c[consumer]);
                proxy_fence();
                named_barrier(1 + consumer, 128);
                for (int box = 0; leader && box < BN / SWIZZLE_COLS; ++box)
                    tma_store(&map_c, shared.c[consumer][box], row, col + box * SWIZZLE_COLS);
            } else {
                store_accumulator<BN>(acc, c, ldc, row, col, M, N);
            }
        }
        if (leader) tma_store_wait_read<0>();  // shared memory outlives what is read from it
    }
}

template <typename T>
const char* launch_type(const Call& call) {
    CUtensorMap map_a, map_b, map_c = {};
    TRY_MAP(make_map(&map_a, call.a, call.type, call.M, call.K, call.lda, BM));
    TRY_MAP(make_map(&map_b, call.b, call.type, call.N, call.K, call.ldb, BN));
    const bool store_by_tma = can_store_by_tma(call);
    if (store_by_tma)
        TRY_MAP(make_map(&map_c, call.c, call.type, call.M, call.N, call.ldc, 64));
    const auto kernel = wgmma_persistent_kernel<T>;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Shared<T>)));
    const int64_t tiles = ceil_div(call.M, int64_t(BM)) * ceil_div(call.N, int64_t(BN));
    const int blocks = tiles < call.sms ? tiles : call.sms;
    kernel<<<blocks, THREADS, sizeof(Shared<T>), call.stream>>>(
        map_a, map_b, map_c, store_by_tma, static_cast<T*>(call.c), call.M, call.N, call.K,
        call.ldc, call.order, call.group);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Call* call) {
    return call->type == BF16 ? launch_type<__nv_bfloat16>(*call) : launch_type<__half>(*call);
}
