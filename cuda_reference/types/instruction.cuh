// One tile of one tensor-core instruction, D = A B + C: what the files of types/ share.
#pragma once

#include <cstring>

#include "abi.cuh"

// What one instruction multiplies. run.py has the same structure for ctypes. Lines are rows,
// or columns: of A and B where the name says "col". Each begins on a multiple of 32 bytes.
struct Operands {
    const void* a;
    const void* b;
    const void* c;
    void* d;
    int32_t lda, ldb, ldc, ldd;          // elements from one stored line to the next
    int32_t c_by_columns, d_by_columns;  // wmma only; 0 or 1
    int32_t swizzle;  // bytes, of A and B in shared memory: 0, 32, 64, 128; wgmma only
    int32_t scale_d;  // 0: D = A B, and C is not read; wgmma only
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

// To nearest, halves away from zero. The instructions themselves drop the low 13 bits.
__device__ inline uint32_t to_tf32(uint32_t word) {
    asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(word));
    return word;
}

// Two neighbours of a row of C or D are `Each` registers: one if an element is half of one.
template <int Each, typename Word>
__device__ inline void load_two(const void* c, int ld, int row, int col, Word* registers) {
    const char* from = static_cast<const char*>(c) + (row * ld + col) * sizeof(Word) * Each / 2;
#pragma unroll
    for (int i = 0; i < Each; ++i) registers[i] = reinterpret_cast<const Word*>(from)[i];
}

template <int Each, typename Word>
__device__ inline void store_two(void* d, int ld, int row, int col, const Word* registers) {
    char* to = static_cast<char*>(d) + (row * ld + col) * sizeof(Word) * Each / 2;
#pragma unroll
    for (int i = 0; i < Each; ++i) reinterpret_cast<Word*>(to)[i] = registers[i];
}
