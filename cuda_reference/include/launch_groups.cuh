// The launch of one block per slot of a product's groups and column of tiles.
#pragma once

#include "groups.cuh"

using GroupedKernel = void (*)(Groups);

// As `launch_tiles`, of tiles of BM x BN.
inline const char* launch_groups(const Groups& groups, int shared, GroupedKernel fp16_fp32,
                                 GroupedKernel fp16_fp16, GroupedKernel bf16_fp32) {
    const Call& call = groups.call;
    GroupedKernel kernel = nullptr;
    if (call.type == FP16) kernel = call.accumulate ? fp16_fp16 : fp16_fp32;
    if (call.type == BF16 && !call.accumulate) kernel = bf16_fp32;
    if (!kernel) return "this type and this accumulator are not supported together";
    const int64_t tiles = slots_of(groups) * ceil_div<int64_t>(call.N, BN);
    if (tiles > INT_MAX) return "more than 2^31 - 1 output tiles";
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    kernel<<<static_cast<unsigned>(tiles), THREADS, shared, call.stream>>>(groups);
    TRY(cudaGetLastError());
    return nullptr;
}
