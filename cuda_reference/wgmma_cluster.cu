/* wgmma_cluster: pairs of SMs share B.

Adds to       wgmma_persistent: clusters of two, half of B multicast by each; stmatrix; four stages
Mirrors       cluster
By hand       multicast, barriers that both blocks arrive at, the cluster's exit, stmatrix
Signs         sm_90: HGMMA.64x256x16, UTMALDG.2D.MULTICAST, UTMASTG, STSM, USETMAXREG, no HMMA
Needs         sm_90; fp16 or bf16, fp32 accumulator; layout NT; 16-byte aligned rows of A and B
*/
#include "cluster.cuh"
#include "roles.cuh"

constexpr int STAGES = 4, CLUSTER = 2, BOXES = 2;
constexpr int SHARE = BN / CLUSTER;  // columns of B that each block loads for both

template <typename T>
struct Shared {
    Stage<T> stages[STAGES];
    alignas(1024) T c[CONSUMERS][BOXES][64 * SWIZZLE_COLS];  // on the way out
    uint64_t full[STAGES], empty[STAGES];
};

// Four 8x8 matrices at once: each thread hands over the registers it has and the address of a row.
__device__ inline void stmatrix(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}

// 64 columns of the accumulator into a box, swizzled as the tensor map of C says.
template <typename T>
__device__ void stage_box(const float* acc, T* box) {
    const int thread = threadIdx.x % 128;
    const int row = thread / 32 * 16 + thread % 16;
    const uint32_t line = shared_address(box) + row * SWIZZLE_COLS * sizeof(T);
#pragma unroll
    for (int j = 0; j < SWIZZLE_COLS / 8; j += 2) {
        const int piece = (j + thread % 32 / 16) ^ (row % 8);  // of 8 columns, 16 bytes
        const float* d = acc + j * 4;
        stmatrix(line + piece * 16, pack<T>(d[0], d[1]), pack<T>(d[2], d[3]),
                 pack<T>(d[4], d[5]), pack<T>(d[6], d[7]));
    }
}

template <typename T>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    wgmma_cluster_kernel(const __grid_constant__ CUtensorMap map_a,
                         const __grid_constant__ CUtensorMap map_b,
                         const __grid_constant__ CUtensorMap map_c, bool store_by_tma, T* c, int M,
                         int N, int K, int64_t ldc, int order, int group) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    Shared<T>& shared = *reinterpret_cast<Shared<T>*>(dynamic);
    const int rank = cluster_rank();
    const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    // A cluster's tile is CLUSTER blocks' tiles high.
    const int rows = ceil_div(M, BM * CLUSTER), cols = ceil_div(N, BN), steps = ceil_div(K, BK);

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], CONSUMERS * CLUSTER);
        }
        barrier_init_fence();
    }
    cluster_sync();  // the other block's barriers are used before anything else

    Ring<STAGES> ring;
    if (threadIdx.x < 128) {
        give_registers();
        if (threadIdx.x == 0) {
            for (int i = first; i < rows * cols; i += stride) {
                const Tile tile = raster(i, rows, cols, order, group);
                const int row = (tile.row * CLUSTER + rank) * BM, col = tile.col * BN + rank * SHARE;
                for (int step = 0; step < steps; ++step, ring.next()) {
                    Stage<T>& to = shared.stages[ring.stage];
                    uint64_t* full = &shared.full[ring.stage];
                    // Free in both blocks, since both are written.
                    barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
                    barrier_expect(full, sizeof to.a + sizeof to.b);
                    tma_load(to.a, &map_a, row, step * BK, full);
                    tma_load_multicast(to.b + rank * SHARE * BK, &map_b, col, step * BK, full,
                                       (1 << CLUSTER) - 1);
                }
            }
        }
        __syncwarp();
    } else {
        take_registers();
        const int consumer = threadIdx.x / 128 - 1, thread = threadIdx.x % 128;
        const bool leader = thread == 0;
        const auto release = [&](int stage) {
            if (thread < CLUSTER) barrier_arrive_at(&shared.empty[stage], thread);
        };
        float acc[BN / 2];
        for (int i = first; i < rows * cols; i += stride) {
            const Tile tile = raster(i, rows, cols, order, group);
            const int row = (tile.row * CLUSTER + rank) * BM + consumer * 64, col = tile.col * BN;
            int before = 0;  // the stage of the step before
            for (int step = 0; step < steps; ++step, ring.next()) {
                const Stage<T>& from = shared.stages[ring.stage];
                barrier_wait(&shared.full[ring.stage], ring.parity);
                multiply(acc, from.a + consumer * 64 * BK, from.b, step == 0);
                wgmma_wait<1>();
                if (step > 0) release(before);
                before = ring.stage;
            }
            wgmma_wait<0>();
            release(before);

            if (store_by_tma) {
#pragma unroll
                for (int box = 0; box < BN / SWIZZLE_COLS; ++box) {
                    T* place = shared.c[consumer][box % BOXES];
                    if (leader) tma_store_wait_read<BOXES - 1>();  // what was here has left
                    named_barrier(1 + consumer, 128);
                    stage_box(acc + box * SWIZZLE_COLS / 2, place);
                    proxy_fence();
                    named_barrier(1 + consumer, 128);
                    if (leader) tma_store_streaming(&map_c, place, row, col + box * SWIZZLE_COLS);
                }
            } else {
                store_accumulator<BN>(acc, c, ldc, row, col, M, N);
            }
        }
        if (leader) tma_store_wait_read<0>();  // shared memory outlives what is read from it
    }
    cluster_sync();  // and what the other block writes or arrives at
}

// The clusters that the device can hold at once; a GPC with an odd SM leaves one out.
template <typename T>
cudaError_t count_clusters(int* count, void (*kernel)(CUtensorMap, CUtensorMap, CUtensorMap, bool,
                                                      T*, int, int, int, int64_t, int, int)) {
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = CLUSTER;
    config.blockDim = THREADS;
    config.dynamicSmemBytes = sizeof(Shared<T>);
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaOccupancyMaxActiveClusters(count, kernel, &config);
}

template <typename T>
const char* launch_type(const Call& call) {
    CUtensorMap map_a, map_b, map_c = {};
    TRY_MAP(make_map(&map_a, call.a, call.type, call.M, call.K, call.lda, BM));
    TRY_MAP(make_map(&map_b, call.b, call.type, call.N, call.K, call.ldb, SHARE));
    const bool store_by_tma = can_store_by_tma(call);
    if (store_by_tma)
        TRY_MAP(make_map(&map_c, call.c, call.type, call.M, call.N, call.ldc, 64));
    const auto kernel = wgmma_cluster_kernel<T>;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Shared<T>)));
    int resident = 0;
    TRY(count_clusters(&resident, kernel));
    if (resident < 1) return "this device holds no cluster of two such blocks";
    const int64_t tiles = ceil_div(call.M, int64_t(BM * CLUSTER)) * ceil_div(call.N, int64_t(BN));
    // No more clusters than it takes to be done in as few tiles each: at a power limit, the SMs
    // that would only shorten the last of them slow down all.
    const int64_t clusters = ceil_div(tiles, ceil_div(tiles, int64_t(resident)));
    kernel<<<clusters * CLUSTER, THREADS, sizeof(Shared<T>), call.stream>>>(
        map_a, map_b, map_c, store_by_tma, static_cast<T*>(call.c), call.M, call.N, call.K,
        call.ldc, call.order, call.group > CLUSTER ? call.group / CLUSTER : 1);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Call* call) {
    return call->type == BF16 ? launch_type<__nv_bfloat16>(*call) : launch_type<__half>(*call);
}
