// mma.sync on one tile: which lane holds which element of A, B, C and D, and the kernels.
#pragma once

#include "instruction.cuh"

// Word `at` of a stored line, of elements of `Bits` bits.
template <typename Word, int Bits>
__device__ inline Word word(const void* matrix, int ld, int line, int at) {
    const char* from = static_cast<const char*>(matrix) + line * ld * Bits / 8;
    return reinterpret_cast<const Word*>(from)[at];
}

// Every shape but m8n8k4 of f16. Lane = 4 g + t. A register is a word of 32 bits, of 64 for f64; a
// step is what the four lanes of a group hold of a line along K: 16 bytes, 32 for f64. A lane holds
// word t of each step, of row g of A, then of row g + 8 if M is 16, and of column g of B. Of C and
// D it holds columns 2 t and 2 t + 1 of the same rows.
template <typename Register, int Bits, int M, int K>
struct Fragments {
    using Word = Register;
    static constexpr int STEPS = K * Bits / (32 * sizeof(Word)), HALVES = M / 8;

    template <bool, bool>
    static __device__ void load(const Operands& o, Word* a, Word* b) {
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        for (int i = 0; i < STEPS * HALVES; ++i)
            a[i] = element<Bits>(o.a, o.lda, g + i % HALVES * 8, i / HALVES * 4 + t);
        for (int i = 0; i < STEPS; ++i) b[i] = element<Bits>(o.b, o.ldb, g, i * 4 + t);
    }

    template <int Count>
    static __device__ void load_c(const Operands& o, Word* c) {
        constexpr int EACH = Count / HALVES;
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        for (int i = 0; i < HALVES; ++i)
            load_two<EACH>(o.c, o.ldc, g + i * 8, 2 * t, c + i * EACH);
    }

    template <int Count>
    static __device__ void store(const Operands& o, const Word* d) {
        constexpr int EACH = Count / HALVES;
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        for (int i = 0; i < HALVES; ++i)
            store_two<EACH>(o.d, o.ldd, g + i * 8, 2 * t, d + i * EACH);
    }

  private:
    // tf32 is the only type of 32 bits, and is rounded on its way in.
    template <int Wide>
    static __device__ Word element(const void* matrix, int ld, int line, int at) {
        const Word found = word<Word, Bits>(matrix, ld, line, at);
        if constexpr (Wide == 32) return to_tf32(found);
        else return found;
    }
};

// The operands' registers: D, then A, B and C, with their counts.
#define REGISTERS_2_1_1_2 "{%0,%1}, {%2}, {%3}, {%4,%5}"
#define REGISTERS_2_2_1_2 "{%0,%1}, {%2,%3}, {%4}, {%5,%6}"
#define REGISTERS_2_4_2_2 "{%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9}"
#define REGISTERS_4_2_1_4 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10}"
#define REGISTERS_4_4_2_4 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13}"
#define REGISTERS_4_8_4_4                                                        \
    "{%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, "            \
    "{%16,%17,%18,%19}"
#define REGISTERS_4_2_2_4 "{%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%8,%9,%10,%11}"
#define REGISTERS_8_2_2_4 "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%12,%13,%14,%15}"
#define REGISTERS_8_2_2_8 \
    "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%12,%13,%14,%15,%16,%17,%18,%19}"
#define OUT_2(R) "=" R(d[0]), "=" R(d[1])
#define OUT_4(R) OUT_2(R), "=" R(d[2]), "=" R(d[3])
#define OUT_8(R) OUT_4(R), "=" R(d[4]), "=" R(d[5]), "=" R(d[6]), "=" R(d[7])
#define IN_1(R, x) R(x[0])
#define IN_2(R, x) IN_1(R, x), R(x[1])
#define IN_4(R, x) IN_2(R, x), R(x[2]), R(x[3])
#define IN_8(R, x) IN_4(R, x), R(x[4]), R(x[5]), R(x[6]), R(x[7])
#define BY_ROWS_row true
#define BY_ROWS_col false

// The kernel `symbol` of the instruction `opcode`: the layouts of A and B, the numbers of registers
// of D, A, B and C, and their constraint in asm.
#define MMA(symbol, opcode, A, B, nd, na, nb, nc, R, ...)                                \
    __global__ void symbol(Operands o, int) {                                            \
        using Tile = __VA_ARGS__;                                                        \
        Tile::Word a[na], b[nb], c[nc], d[nd];                                           \
        Tile::load<BY_ROWS_##A, BY_ROWS_##B>(o, a, b);                                   \
        Tile::load_c<nc>(o, c);                                                          \
        asm volatile(opcode " " REGISTERS_##nd##_##na##_##nb##_##nc ";"                  \
                     : OUT_##nd(R)                                                       \
                     : IN_##na(R, a), IN_##nb(R, b), IN_##nc(R, c));                     \
        Tile::store<nd>(o, d);                                                           \
    }

// The library's function. `rows` are the rows of the table that holds its instructions.
#define MMA_RUN(rows)                                        \
    static const Instruction table[] = {rows};               \
    EXPORT run(const char* name, const Operands* operands) { \
        return run_one(table, name, 32, *operands);          \
    }
