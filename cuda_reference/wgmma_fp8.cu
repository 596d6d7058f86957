/* wgmma_fp8: operands of 8 bits with scales, whose sums are promoted every 128 elements of K.

Adds to       wgmma_warp_specialized: partial sums of each step, scaled and added in fp32
Mirrors       scaled
By hand       two sets of sums, what may be read when, scales loaded a step ahead, a lone producer
Signs         sm_90: QGMMA.64x128x32, UTMALDG, SYNCS, no HGMMA, no LDGSTS, no USETMAXREG
Needs         sm_90; fp8 e4m3 with scales, C in fp16 or bf16; layout NT; 16-byte aligned rows
Note          Hopper's tensor cores keep 14 bits of a sum of fp8: no sum of theirs is long here.
*/
#include "raster.cuh"
#include "scales.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int CONSUMERS = 2;  // warpgroups that multiply
// The last warp loads. So few threads have 224 registers each: two sets of 64 sums find room, and
// none need be handed over.
constexpr int THREADS = 128 * CONSUMERS + 32;
// A scale is of BN columns and BK elements of K, which are also the 128 bytes that TMA swizzles.
constexpr int BM = 64 * CONSUMERS, BN = 128, BK = 128, STAGES = 6;

struct Stage {
    alignas(1024) uint8_t a[BM * BK];
    alignas(1024) uint8_t b[BN * BK];
};

struct Shared {
    Stage stages[STAGES];
    uint64_t full[STAGES], empty[STAGES];
};

// d[64 x 128] = A[64 x 32] B[32 x 128], plus d unless `keep` is 0. Both are stored along K.
__device__ inline void wgmma_m64n128k32(float (&d)[BN / 2], uint64_t a, uint64_t b, int keep) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
        " {" WGMMA_REGS_128 "}, %64, %65, p, 1, 1;\n"
        "}\n"
        : WGMMA_ACC_128
        : "l"(a), "l"(b), "r"(keep));
}

// d = A B for the BK elements of K of one stage; `a` is this warpgroup's 64 rows. It waits, and
// names d there too: so the compiler reads no part of d before the wait.
__device__ inline void multiply(float (&d)[BN / 2], const uint8_t* a, const uint8_t* b) {
    const uint64_t desc_a = swizzled_descriptor(a), desc_b = swizzled_descriptor(b);
    wgmma_fence();
    wgmma_m64n128k32(d, desc_a, desc_b, 0);
#pragma unroll
    for (int k = 1; k < BK / 32; ++k) wgmma_m64n128k32(d, desc_a + 2 * k, desc_b + 2 * k, 1);
    wgmma_commit();
    asm volatile("wgmma.wait_group.sync.aligned 0;" : WGMMA_ACC_128 : : "memory");
}

// A thread's scales of one step: of the two rows that its sums are of, and of the tile's columns.
struct Scales {
    float first, second, columns;
};

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    wgmma_fp8_kernel(const __grid_constant__ CUtensorMap map_a,
                     const __grid_constant__ CUtensorMap map_b,
                     const __grid_constant__ Scaled scaled) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    const Call& call = scaled.call;
    const int M = call.M, N = call.N, steps = ceil_div(int(call.K), BK);
    const Tile tile = raster(blockIdx.x, ceil_div(M, BM), ceil_div(N, BN), call.order, call.group);
    const int row = tile.row * BM, col = tile.col * BN;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], CONSUMERS);
        }
        barrier_init_fence();
    }
    __syncthreads();

    Ring<STAGES> ring;
    if (threadIdx.x >= 128 * CONSUMERS) {
        if (threadIdx.x % 32 == 0) {
            for (int step = 0; step < steps; ++step, ring.next()) {
                Stage& to = shared.stages[ring.stage];
                uint64_t* full = &shared.full[ring.stage];
                barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);  // free at first
                barrier_expect(full, sizeof to.a + sizeof to.b);
                tma_load(to.a, &map_a, row, step * BK, full);
                tma_load(to.b, &map_b, col, step * BK, full);
            }
        }
    } else {
        const int consumer = threadIdx.x / 128, thread = threadIdx.x % 128;
        // Rows past the edge, which are not stored, have the last one's scales.
        const int mine = row + consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
        const float* first = scaled.scale_a + min(mine, M - 1) * scaled.a_line;
        const float* second = scaled.scale_a + min(mine + 8, M - 1) * scaled.a_line;
        const float* columns = scaled.scale_b + tile.col * scaled.b_line;
        const auto load_scales = [&](int step) -> Scales {
            const int64_t a = step * scaled.a_step, b = step * scaled.b_step;
            return {__ldg(first + a), __ldg(second + a), __ldg(columns + b)};
        };

        float acc[BN / 2] = {};
        Scales next = load_scales(0);
        for (int step = 0; step < steps; ++step, ring.next()) {
            const Stage& from = shared.stages[ring.stage];
            const Scales now = next;
            if (step + 1 < steps) next = load_scales(step + 1);
            float partial[BN / 2];
            barrier_wait(&shared.full[ring.stage], ring.parity);
            multiply(partial, from.a + consumer * 64 * BK, from.b);
            if (thread == 0) barrier_arrive(&shared.empty[ring.stage]);
            // Meanwhile the other warpgroup's products keep the tensor cores busy.
            const float scales[2] = {now.first * now.columns, now.second * now.columns};
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) acc[i] += partial[i] * scales[i / 2 % 2];
        }
        T* c = static_cast<T*>(call.c);
        store_accumulator<BN>(acc, c, call.ldc, row + consumer * 64, col, M, N);
    }
}

template <typename T>
const char* launch_type(const Scaled& scaled) {
    const Call& call = scaled.call;
    const auto bytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    CUtensorMap map_a, map_b;
    TRY_MAP(encode_map(&map_a, call.a, bytes, 1, call.M, call.K, call.lda, BM));
    TRY_MAP(encode_map(&map_b, call.b, bytes, 1, call.N, call.K, call.ldb, BN));
    const auto kernel = wgmma_fp8_kernel<T>;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    const int64_t tiles = ceil_div(call.M, int64_t(BM)) * ceil_div(call.N, int64_t(BN));
    kernel<<<tiles, THREADS, sizeof(Shared), call.stream>>>(map_a, map_b, scaled);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Scaled* scaled) {
    return scaled->call.type == BF16 ? launch_type<__nv_bfloat16>(*scaled)
                                     : launch_type<__half>(*scaled);
}
