// One block at a time on one CPU thread: its threads are coroutines that take turns. All run the
// same code, so that whoever waits has waited for all when it is its turn again.
#pragma once

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

// What nvcc knows and a C++ compiler does not.
#define __launch_bounds__(...)
#define __grid_constant__

using std::max;
using std::min;

template <typename T>
T __ldg(const T* from) {
    return *from;
}
inline void __stwb(uint4* to, uint4 value) { *to = value; }

struct Index {
    unsigned x;
};
inline Index threadIdx, blockIdx, gridDim;

// What a thread shows to the others of its warp.
struct Lane {
    const void* pointer;
    uint32_t a[4], b[2];
    bool vote;
};

struct Block {
    std::vector<ucontext_t> threads;
    std::vector<std::vector<char>> stacks;
    std::vector<bool> done;
    std::vector<Lane> lanes;
    ucontext_t scheduler;
    std::function<void()> body;
};
inline Block block;

inline Lane& lane() { return block.lanes[threadIdx.x]; }
inline Lane* lanes() { return &block.lanes[threadIdx.x / 32 * 32]; }

inline void meet() { swapcontext(&block.threads[threadIdx.x], &block.scheduler); }
inline void __syncthreads() { meet(); }
inline void __syncwarp() { meet(); }
inline int __syncthreads_count(int predicate) {
    lane().vote = predicate;
    meet();
    int votes = 0;
    for (const Lane& each : block.lanes) votes += each.vote;
    meet();  // before the next vote
    return votes;
}

inline void run_thread() {
    block.body();
    block.done[threadIdx.x] = true;
}

inline void run_block(int threads, std::function<void()> body) {
    block.threads.assign(threads, {});
    block.stacks.resize(threads);
    block.done.assign(threads, false);
    block.lanes.assign(threads, {});
    block.body = body;
    for (int i = 0; i < threads; ++i) {
        block.stacks[i].resize(1 << 16);
        getcontext(&block.threads[i]);
        block.threads[i].uc_stack.ss_sp = block.stacks[i].data();
        block.threads[i].uc_stack.ss_size = block.stacks[i].size();
        block.threads[i].uc_link = &block.scheduler;
        makecontext(&block.threads[i], run_thread, 0);
    }
    for (bool left = true; left;) {
        left = false;
        for (int i = 0; i < threads; ++i) {
            if (block.done[i]) continue;
            left = true;
            threadIdx.x = i;
            swapcontext(&block.scheduler, &block.threads[i]);
        }
    }
}
