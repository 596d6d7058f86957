// In place of include/launch_groups.cuh: a block for each slot and column, one after another.
#pragma once

#include "groups.cuh"

using GroupedKernel = void (*)(Groups);

inline const char* launch_groups(const Groups& groups, int bytes, GroupedKernel fp16_fp32,
                                 GroupedKernel fp16_fp16, GroupedKernel bf16_fp32) {
    const Call& call = groups.call;
    const GroupedKernel kernel =
        call.type ? bf16_fp32 : call.accumulate ? fp16_fp16 : fp16_fp32;
    run_grid(slots_of(groups) * ceil_div<int64_t>(call.N, BN), THREADS, [&] { kernel(groups); });
    return nullptr;
}
