// One tile of one tensor-core instruction, D = A B + C: what the files of types/ share.
#pragma once

#include <cstring>

#include "abi.cuh"

// What one instruction multiplies. run.py has the same structure for ctypes. Lines are rows,
// or columns where the name says "col" (A, B only); each begins on a multiple of 32 bytes.
struct Operands {
    const void* a;
    const void* b;
    const void* c;
    void* d;
    int32_t lda, ldb, ldc, ldd;  // elements from one stored line to the next
    int32_t swizzle;             // bytes, of A and B in shared memory: 0, 32, 64, 128; wgmma only
    cudaStream_t stream;
};

// An instruction, called as in PTX, and the kernel that holds it. Where one kernel holds several,
// `variant` is which.
struct Instruction {
    const char* name;
    void (*kernel)(Operands, int variant);
    int variant;
};

template <size_t Count>
const char* run_one(const Instruction (&table)[Count], const char* name, int threads,
                    const Operands& operands) {
    for (const Instruction& instruction : table) {
        if (strcmp(instruction.name, name)) continue;
        instruction.kernel<<<1, threads, 0, operands.stream>>>(operands, instruction.variant);
        TRY(cudaGetLastError());
        return nullptr;
    }
    return "this file has no such instruction";
}

// Two 16-bit elements, `at` and the next one, of a stored line; the first is in the low half.
__device__ inline uint32_t pair(const void* matrix, int ld, int line, int at) {
    const uint16_t* from = static_cast<const uint16_t*>(matrix) + line * ld + at;
    return *reinterpret_cast<const uint32_t*>(from);
}

// Two neighbours of a row of C or D are one register if an element has 16 bits, two if `Wide`, 32.
template <bool Wide>
__device__ inline void load_two(const void* c, int ld, int row, int col, uint32_t* registers) {
    if constexpr (Wide) {
        const uint32_t* at = static_cast<const uint32_t*>(c) + row * ld + col;
        registers[0] = at[0];
        registers[1] = at[1];
    } else {
        registers[0] = pair(c, ld, row, col);
    }
}

template <bool Wide>
__device__ inline void store_two(void* d, int ld, int row, int col, const uint32_t* registers) {
    if constexpr (Wide) {
        uint32_t* at = static_cast<uint32_t*>(d) + row * ld + col;
        at[0] = registers[0];
        at[1] = registers[1];
    } else {
        uint16_t* at = static_cast<uint16_t*>(d) + row * ld + col;
        *reinterpret_cast<uint32_t*>(at) = registers[0];
    }
}
