// The address of shared memory in the form that PTX needs.
#pragma once

#include <cstdint>

__device__ inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
