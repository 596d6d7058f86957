/* simt_naive: one thread per output element, no tensor core.

Adds to       nothing: the floor
Mirrors       simt
By hand       one multiply-add after another, in the order of k
Signs         sm_80: no HMMA, no LDSM; sm_90: no HMMA, no LDSM, no HGMMA
Needs         sm_80; fp16 or bf16; any rows
*/
#include "launch.cuh"
#include "narrow.cuh"

constexpr int TILE = 16;  // 16 x 16 threads

__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ void multiply_add(float& acc, T a, T b) {
    acc = fmaf(to_float(a), to_float(b), acc);
}
__device__ inline void multiply_add(__half& acc, __half a, __half b) { acc = __hfma(a, b, acc); }

template <typename T, typename Acc>
__global__ void simt_naive_kernel(const __grid_constant__ Call call) {
    const int64_t cols = ceil_div<int64_t>(call.N, TILE);
    const int64_t row = blockIdx.x / cols * TILE + threadIdx.x / TILE;
    const int64_t col = blockIdx.x % cols * TILE + threadIdx.x % TILE;
    if (row >= call.M || col >= call.N) return;  // no barrier follows

    const T* a = static_cast<const T*>(call.a) + row * call.lda;
    const T* b = static_cast<const T*>(call.b) + col * call.ldb;
    Acc acc{};
    for (int64_t k = 0; k < call.K; ++k) multiply_add(acc, a[k], b[k]);
    narrow(acc, static_cast<T*>(call.c)[row * call.ldc + col]);
}

EXPORT launch(const Call* call) {
    return launch_tiles(*call, TILE, TILE, TILE * TILE, 0, simt_naive_kernel<__half, float>,
                        simt_naive_kernel<__half, __half>,
                        simt_naive_kernel<__nv_bfloat16, float>);
}
