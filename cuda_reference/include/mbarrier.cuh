// mbarriers: how TMA and warps tell each other that a shared-memory stage is full or
// empty. PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
#pragma once

#include "abi.cuh"
#include "shared_address.cuh"

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

// Makes initialised barriers visible to TMA and to the other blocks of the cluster.
__device__ inline void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrives at the barrier in the same place of the shared memory of block `rank` of the cluster.
// It orders nothing across blocks, which would cost a fence of the whole GPU: use it where all that
// the other block may rely on is that WGMMA has finished reading.
__device__ inline void barrier_arrive_at(uint64_t* barrier, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// Arrives, and makes the phase wait for `bytes` that TMA will write as well.
__device__ inline void barrier_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// Returns once the phase of this parity is complete: 0 for the first, 1 for the second, and so on.
__device__ inline void barrier_wait(uint64_t* barrier, int parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!done);
}

// A place in a ring of `Stages` buffers, and the parity of the lap.
template <int Stages>
struct Ring {
    int stage = 0;
    int parity = 0;

    __device__ void next() {
        if (++stage == Stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Waits for the `threads` threads that name the same hardware barrier `id` (1 to 15).
__device__ inline void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
