/* wgmma_m64n8k16: one WGMMA per k-step, its descriptors spelled out.

Adds to       mma_naive: four warps multiply together, and both operands are in shared memory
Mirrors       naive
By hand       the 8 x 16-byte core matrices, the descriptors, both majors of B, the proxy fence
Signs         sm_90: HGMMA.64x8x16, no HMMA, no UTMALDG
Needs         sm_90; fp16 or bf16, fp32 accumulator; layout NT or NN; any pitch
*/
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int BM = 64, BN = 8, BK = 16;
constexpr int CORE = 8 * 16;  // bytes of a core matrix: 8 lines of 16 bytes

// A tile element's place, in elements: core matrices of 8 x 8, those of the same k adjacent.
__device__ int a_place(int m, int k) { return (k / 8 * (BM / 8) + m / 8) * 64 + m % 8 * 8 + k % 8; }
// B by columns: a line of a core matrix is 8 elements along K. By rows: along N.
__device__ int b_place(int k, int n, bool by_rows) {
    return k / 8 * 64 + (by_rows ? k % 8 * 8 + n : n * 8 + k % 8);
}

template <typename T, bool BRows>
__global__ void __launch_bounds__(128)
    wgmma_m64n8k16_kernel(const T* a, const T* b, T* c, int M, int N, int K, int64_t lda,
                          int64_t ldb, int64_t ldc) {
    __shared__ alignas(128) T tile_a[BM * BK];
    __shared__ alignas(128) T tile_b[BK * BN];
    const int tiles_n = ceil_div(N, BN);
    const int row = blockIdx.x / tiles_n * BM, col = blockIdx.x % tiles_n * BN;
    const int thread = threadIdx.x;
    T zero;
    narrow(0.0f, zero);

    // Core matrices that are neighbours along K are 8 apart in A and adjacent in B; along M they
    // are adjacent; along N there is one, so B's second distance is not used.
    const uint64_t desc_a = matrix_descriptor(tile_a, BM / 8 * CORE, CORE, 0);
    const uint64_t desc_b = matrix_descriptor(tile_b, CORE, CORE, 0);

    float acc[BN / 2] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = thread; i < BM * BK; i += 128) {
            const int m = i / BK, k = i % BK;
            const bool inside = row + m < M && k0 + k < K;
            tile_a[a_place(m, k)] = inside ? a[(row + m) * lda + k0 + k] : zero;
        }
        const int k = BRows ? thread / BN : thread % BK, n = BRows ? thread % BN : thread / BK;
        const bool inside = k0 + k < K && col + n < N;
        const int64_t from = BRows ? (k0 + k) * ldb + col + n : (col + n) * ldb + k0 + k;
        tile_b[b_place(k, n, BRows)] = inside ? b[from] : zero;
        proxy_fence();  // WGMMA reads shared memory through another path than these writes took
        __syncthreads();

        wgmma_fence();
        if constexpr (BRows)
            wgmma_m64n8k16_b_by_rows<T>(acc, desc_a, desc_b, 1);
        else
            wgmma_m64n8k16<T>(acc, desc_a, desc_b, 1);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // the next step overwrites what this one has read
    }
    store_accumulator<BN>(acc, c, ldc, row, col, M, N);
}

template <typename T>
const char* launch_type(const Call& call) {
    const auto kernel =
        call.b_rows_are ? wgmma_m64n8k16_kernel<T, true> : wgmma_m64n8k16_kernel<T, false>;
    const int64_t tiles = ceil_div(call.M, int64_t(BM)) * ceil_div(call.N, int64_t(BN));
    kernel<<<tiles, 128, 0, call.stream>>>(
        static_cast<const T*>(call.a), static_cast<const T*>(call.b), static_cast<T*>(call.c),
        call.M, call.N, call.K, call.lda, call.ldb, call.ldc);
    TRY(cudaGetLastError());
    return nullptr;
}

EXPORT launch(const Call* call) {
    return call->type == BF16 ? launch_type<__nv_bfloat16>(*call) : launch_type<__half>(*call);
}
