// Warpgroups with roles: one that loads and needs few registers, two that multiply and need many.
#pragma once

#include "raster.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int CONSUMERS = 2;                     // warpgroups that multiply
constexpr int THREADS = 128 * (1 + CONSUMERS);   // the first warpgroup loads
constexpr int BM = 64 * CONSUMERS, BN = 256, BK = 64;

// 65536 registers are 168 for each of 384 threads; of these the loading warpgroup keeps 24.
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}

// One k-step of a stage.
template <typename T>
struct Stage {
    alignas(1024) T a[BM * BK];
    alignas(1024) T b[BN * BK];
};

// acc += A B for the BK columns of one stage; `a` is this warpgroup's 64 rows. Nothing is waited
// for. D is set, not added to, at the first step of a tile.
template <typename T>
__device__ inline void multiply(float (&acc)[BN / 2], const T* a, const T* b, bool first) {
    const uint64_t desc_a = swizzled_descriptor(a), desc_b = swizzled_descriptor(b);
    wgmma_fence();
    wgmma_m64n256k16<T>(acc, desc_a, desc_b, !first);
#pragma unroll
    for (int k = 1; k < BK / 16; ++k) wgmma_m64n256k16<T>(acc, desc_a + 2 * k, desc_b + 2 * k, 1);
    wgmma_commit();
}
