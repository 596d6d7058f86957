// wgmma on one tile: a warpgroup writes A and B to shared memory in the layout that the descriptors
// name, multiplies once and waits.
#pragma once

#include "instruction.cuh"
#include "wgmma.cuh"

// The layout of an operand in shared memory: PTX ISA, "Canonical Layouts". It is made of chunks of
// 16 bytes, and one instruction takes 32 bytes along K: two chunks of a row, or 16 rows of 2-byte
// elements. A pattern has 8 rows of `swizzle` bytes, 16 without swizzle; within it, the number of a
// chunk is xored with the number of the pattern's 128 bytes.
struct Layout {
    int row, rows;    // bytes of a row of the pattern, and of all eight
    bool mn_major;    // neighbours in memory are neighbours along M or N, not along K
    bool swizzled;

    __device__ Layout(int swizzle, bool mn_major)
        : row(swizzle ? swizzle : 16), rows(8 * row), mn_major(mn_major), swizzled(swizzle) {}

    // The bytes between neighbouring patterns, along K and along M or N.
    __device__ int k_step() const { return mn_major || !swizzled ? rows : 16; }
    __device__ int mn_step() const { return mn_major || !swizzled ? 2 * rows : rows; }

    // Where chunk `chunk` of line `line` of the matrix is. Lines run along the major dimension.
    __device__ int place(int line, int chunk) const {
        const int within = line % 8 * row;
        int offset;
        if (mn_major) {
            const int chunks = row / 16;
            offset = within + line / 8 * k_step();
            offset += chunk / chunks * mn_step() + chunk % chunks * 16;
        } else {
            offset = within + line / 8 * mn_step() + chunk * k_step();
        }
        return offset ^ ((offset >> 7 & (row / 16 - 1)) << 4);
    }

    __device__ uint64_t descriptor(const void* tile) const {
        // In swizzled MN-major layouts the two strides change places.
        const bool exchange = mn_major && swizzled;
        const int mode = row == 128 ? 1 : row == 64 ? 2 : row == 32 ? 3 : 0;
        return matrix_descriptor(tile, exchange ? mn_step() : k_step(),
                                 exchange ? k_step() : mn_step(), mode);
    }
};

// Copies an operand, `Extent` long in M or N, whose elements have `Bits` bits (tf32: 32).
template <int Extent, int Bits>
__device__ void stage(char* tile, Layout layout, const void* matrix, int ld) {
    const int lines = layout.mn_major ? 16 : Extent;
    const int chunks = layout.mn_major ? Extent / 8 : 2;
    for (int i = threadIdx.x; i < lines * chunks; i += 128) {
        const int line = i / chunks, chunk = i % chunks;
        const char* from = static_cast<const char*>(matrix) + line * ld * Bits / 8 + 16 * chunk;
        uint4 data = *reinterpret_cast<const uint4*>(from);
        if (Bits == 32) data = {to_tf32(data.x), to_tf32(data.y), to_tf32(data.z), to_tf32(data.w)};
        *reinterpret_cast<uint4*>(tile + layout.place(line, chunk)) = data;
    }
}

// Thread t holds, of C and D, two neighbours of a row at a time: at columns 8 j + 2 (t % 4) of row
// 16 (t / 32) + (t % 32) / 4 and of the row 8 below. `move` gets their place and first register.
template <int N, int Registers, typename Move>
__device__ void for_fragment(Move move) {
    constexpr int EACH = Registers * 4 / N;
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        move(row, 8 * j + col, 2 * EACH * j);
        move(row + 8, 8 * j + col, 2 * EACH * j + EACH);
    }
}

// What happens before and after the instruction. `d` are `Registers` registers of C, then of D.
template <int N, int Bits, int Registers>
struct WgmmaTile {
    static constexpr int A_BYTES = 64 * 128, B_BYTES = N < 16 ? 16 * 128 : N * 128;
    static constexpr int EACH = Registers * 4 / N;  // registers of two neighbours of C or D

    static __device__ void load(const Operands& o, char* shared, bool a_by_columns, bool b_by_rows,
                                uint64_t& a, uint64_t& b, uint32_t* d) {
        // Ones are NaN in every float type: bytes that no layout names must not be read.
        for (int i = threadIdx.x; i < (A_BYTES + B_BYTES) / 16; i += 128)
            reinterpret_cast<uint4*>(shared)[i] = {~0u, ~0u, ~0u, ~0u};
        __syncthreads();
        const Layout a_layout(o.swizzle, a_by_columns), b_layout(o.swizzle, b_by_rows);
        stage<64, Bits>(shared, a_layout, o.a, o.lda);
        stage<N, Bits>(shared + A_BYTES, b_layout, o.b, o.ldb);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // WGMMA reads what was stored
        __syncthreads();
        a = a_layout.descriptor(shared);
        b = b_layout.descriptor(shared + A_BYTES);
        for_fragment<N, Registers>([&](int row, int col, int i) {
            load_two<EACH>(o.c, o.ldc, row, col, d + i);
        });
    }

    // A's registers, for WGMMA that takes A from there: of rows r and r + 8 word t % 4 of the first
    // 16 bytes along K, then of the second.
    static __device__ void load_a(const Operands& o, uint32_t (&words)[4]) {
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        for (int i = 0; i < 4; ++i) {
            const char* line = static_cast<const char*>(o.a) + (row + i % 2 * 8) * o.lda * Bits / 8;
            words[i] = reinterpret_cast<const uint32_t*>(line)[i / 2 * 4 + threadIdx.x % 4];
            if (Bits == 32) words[i] = to_tf32(words[i]);
        }
    }

    static __device__ void store(const Operands& o, const uint32_t* d) {
        for_fragment<N, Registers>([&](int row, int col, int i) {
            store_two<EACH>(o.d, o.ldd, row, col, d + i);
        });
    }
};

// The kernel `symbol`: `...` is the body of a switch over its variants, made of WGMMA. It is one
// kernel for all variants because most of it, and of the time to compile it, is C and D.
#define WGMMA_KERNEL(symbol, N, bits, registers, a_by_columns, b_by_rows, ...) \
    __global__ void __launch_bounds__(128) symbol(Operands o, int variant) {   \
        using Tile = WgmmaTile<N, bits, registers>;                            \
        __shared__ __align__(1024) char shared[Tile::A_BYTES + Tile::B_BYTES]; \
        uint32_t d[registers];                                                 \
        uint64_t a, b;                                                         \
        Tile::load(o, shared, a_by_columns, b_by_rows, a, b, d);               \
        switch (variant) { __VA_ARGS__ }                                       \
        Tile::store(o, d);                                                     \
    }

// The instruction whose text is `mma` and whose last operands are `tail`. The descriptors come
// first: so their numbers are the same for every N. One asm from fence to wait: nothing may touch
// D's registers in between.
#define WGMMA(number, registers, mma, tail)                                                    \
    case number:                                                                               \
        asm volatile(                                                                          \
            "wgmma.fence.sync.aligned;\n"                                                      \
            "wgmma.mma_async.sync.aligned." mma " {" REGISTERS_##registers "}, %0, %1, 1" tail \
            ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"            \
            : "+l"(a), "+l"(b), OUT_##registers                                                \
            :                                                                                  \
            : "memory");                                                                       \
        break;

// f16 and bf16 may be stored along M and N too: bit 1 of the variant is A's major, bit 0 is B's.
#define WGMMA_16(AB, D, N, registers)                                                       \
    WGMMA_KERNEL(wgmma_m64n##N##k16_##D##_##AB, N, 16, registers, variant & 2, variant & 1, \
                 WGMMA(0, registers, "m64n" #N "k16." #D "." #AB "." #AB, ", 1, 1, 0, 0")   \
                 WGMMA(1, registers, "m64n" #N "k16." #D "." #AB "." #AB, ", 1, 1, 0, 1")   \
                 WGMMA(2, registers, "m64n" #N "k16." #D "." #AB "." #AB, ", 1, 1, 1, 0")   \
                 WGMMA(3, registers, "m64n" #N "k16." #D "." #AB "." #AB, ", 1, 1, 1, 1"))
#define WGMMA_16_ROW(AB, D, N, A, B, variant)                 \
    {"wgmma.m64n" #N "k16." #A "." #B "." #D "." #AB "." #AB, \
     wgmma_m64n##N##k16_##D##_##AB, variant},
#define WGMMA_16_ROWS(AB, D, N, registers)                                  \
    WGMMA_16_ROW(AB, D, N, row, col, 0) WGMMA_16_ROW(AB, D, N, row, row, 1) \
    WGMMA_16_ROW(AB, D, N, col, col, 2) WGMMA_16_ROW(AB, D, N, col, row, 3)

#define WGMMA_RUN(rows)                                      \
    static const Instruction table[] = {rows};               \
    EXPORT run(const char* name, const Operands* operands) { \
        return run_one(table, name, 128, *operands);         \
    }

// D's registers are N / 2, or N / 4 in f16.
#define IN_32_BITS(X, AB, D, N, half, quarter) X(AB, D, N, half)
#define IN_16_BITS(X, AB, D, N, half, quarter) X(AB, D, N, quarter)

// X(..., N, N / 2, N / 4) for each N that the integer types have, and for the others. FEW_N leaves
// the ends and one between, for who looks at the code and has not all day.
#ifdef FEW_N
#define FOR_INTEGER_N(X, ...) \
    X(__VA_ARGS__, 8, 4, 2) X(__VA_ARGS__, 96, 48, 24) X(__VA_ARGS__, 256, 128, 64)
#define FOR_OTHER_N(X, ...) X(__VA_ARGS__, 40, 20, 10) X(__VA_ARGS__, 248, 124, 62)
#else
#define FOR_INTEGER_N(X, ...)                                                              \
    X(__VA_ARGS__, 8, 4, 2) X(__VA_ARGS__, 16, 8, 4) X(__VA_ARGS__, 24, 12, 6)             \
    X(__VA_ARGS__, 32, 16, 8) X(__VA_ARGS__, 48, 24, 12) X(__VA_ARGS__, 64, 32, 16)        \
    X(__VA_ARGS__, 80, 40, 20) X(__VA_ARGS__, 96, 48, 24) X(__VA_ARGS__, 112, 56, 28)      \
    X(__VA_ARGS__, 128, 64, 32) X(__VA_ARGS__, 144, 72, 36) X(__VA_ARGS__, 160, 80, 40)    \
    X(__VA_ARGS__, 176, 88, 44) X(__VA_ARGS__, 192, 96, 48) X(__VA_ARGS__, 208, 104, 52)   \
    X(__VA_ARGS__, 224, 112, 56) X(__VA_ARGS__, 240, 120, 60) X(__VA_ARGS__, 256, 128, 64)
#define FOR_OTHER_N(X, ...)                                                               \
    X(__VA_ARGS__, 40, 20, 10) X(__VA_ARGS__, 56, 28, 14) X(__VA_ARGS__, 72, 36, 18)      \
    X(__VA_ARGS__, 88, 44, 22) X(__VA_ARGS__, 104, 52, 26) X(__VA_ARGS__, 120, 60, 30)    \
    X(__VA_ARGS__, 136, 68, 34) X(__VA_ARGS__, 152, 76, 38) X(__VA_ARGS__, 168, 84, 42)   \
    X(__VA_ARGS__, 184, 92, 46) X(__VA_ARGS__, 200, 100, 50) X(__VA_ARGS__, 216, 108, 54) \
    X(__VA_ARGS__, 232, 116, 58) X(__VA_ARGS__, 248, 124, 62)
#endif
#define FOR_N(X, ...) FOR_INTEGER_N(X, __VA_ARGS__) FOR_OTHER_N(X, __VA_ARGS__)

// REGISTERS_n lists the n registers of D in PTX, OUT_n names them for the asm: operands %2 and on.
#define REGISTERS_2 "%2,%3"
#define REGISTERS_4 REGISTERS_2 ",%4,%5"
#define REGISTERS_6 REGISTERS_4 ",%6,%7"
#define REGISTERS_8 REGISTERS_6 ",%8,%9"
#define REGISTERS_10 REGISTERS_8 ",%10,%11"
#define REGISTERS_12 REGISTERS_10 ",%12,%13"
#define REGISTERS_14 REGISTERS_12 ",%14,%15"
#define REGISTERS_16 REGISTERS_14 ",%16,%17"
#define REGISTERS_18 REGISTERS_16 ",%18,%19"
#define REGISTERS_20 REGISTERS_18 ",%20,%21"
#define REGISTERS_22 REGISTERS_20 ",%22,%23"
#define REGISTERS_24 REGISTERS_22 ",%24,%25"
#define REGISTERS_26 REGISTERS_24 ",%26,%27"
#define REGISTERS_28 REGISTERS_26 ",%28,%29"
#define REGISTERS_30 REGISTERS_28 ",%30,%31"
#define REGISTERS_32 REGISTERS_30 ",%32,%33"
#define REGISTERS_34 REGISTERS_32 ",%34,%35"
#define REGISTERS_36 REGISTERS_34 ",%36,%37"
#define REGISTERS_38 REGISTERS_36 ",%38,%39"
#define REGISTERS_40 REGISTERS_38 ",%40,%41"
#define REGISTERS_42 REGISTERS_40 ",%42,%43"
#define REGISTERS_44 REGISTERS_42 ",%44,%45"
#define REGISTERS_46 REGISTERS_44 ",%46,%47"
#define REGISTERS_48 REGISTERS_46 ",%48,%49"
#define REGISTERS_50 REGISTERS_48 ",%50,%51"
#define REGISTERS_52 REGISTERS_50 ",%52,%53"
#define REGISTERS_54 REGISTERS_52 ",%54,%55"
#define REGISTERS_56 REGISTERS_54 ",%56,%57"
#define REGISTERS_58 REGISTERS_56 ",%58,%59"
#define REGISTERS_60 REGISTERS_58 ",%60,%61"
#define REGISTERS_62 REGISTERS_60 ",%62,%63"
#define REGISTERS_64 REGISTERS_62 ",%64,%65"
#define REGISTERS_68 REGISTERS_64 ",%66,%67,%68,%69"
#define REGISTERS_72 REGISTERS_68 ",%70,%71,%72,%73"
#define REGISTERS_76 REGISTERS_72 ",%74,%75,%76,%77"
#define REGISTERS_80 REGISTERS_76 ",%78,%79,%80,%81"
#define REGISTERS_84 REGISTERS_80 ",%82,%83,%84,%85"
#define REGISTERS_88 REGISTERS_84 ",%86,%87,%88,%89"
#define REGISTERS_92 REGISTERS_88 ",%90,%91,%92,%93"
#define REGISTERS_96 REGISTERS_92 ",%94,%95,%96,%97"
#define REGISTERS_100 REGISTERS_96 ",%98,%99,%100,%101"
#define REGISTERS_104 REGISTERS_100 ",%102,%103,%104,%105"
#define REGISTERS_108 REGISTERS_104 ",%106,%107,%108,%109"
#define REGISTERS_112 REGISTERS_108 ",%110,%111,%112,%113"
#define REGISTERS_116 REGISTERS_112 ",%114,%115,%116,%117"
#define REGISTERS_120 REGISTERS_116 ",%118,%119,%120,%121"
#define REGISTERS_124 REGISTERS_120 ",%122,%123,%124,%125"
#define REGISTERS_128 REGISTERS_124 ",%126,%127,%128,%129"
#define OUT(i) "+r"(d[i]), "+r"(d[i + 1])
#define OUT_2 OUT(0)
#define OUT_4 OUT_2, OUT(2)
#define OUT_6 OUT_4, OUT(4)
#define OUT_8 OUT_6, OUT(6)
#define OUT_10 OUT_8, OUT(8)
#define OUT_12 OUT_10, OUT(10)
#define OUT_14 OUT_12, OUT(12)
#define OUT_16 OUT_14, OUT(14)
#define OUT_18 OUT_16, OUT(16)
#define OUT_20 OUT_18, OUT(18)
#define OUT_22 OUT_20, OUT(20)
#define OUT_24 OUT_22, OUT(22)
#define OUT_26 OUT_24, OUT(24)
#define OUT_28 OUT_26, OUT(26)
#define OUT_30 OUT_28, OUT(28)
#define OUT_32 OUT_30, OUT(30)
#define OUT_34 OUT_32, OUT(32)
#define OUT_36 OUT_34, OUT(34)
#define OUT_38 OUT_36, OUT(36)
#define OUT_40 OUT_38, OUT(38)
#define OUT_42 OUT_40, OUT(40)
#define OUT_44 OUT_42, OUT(42)
#define OUT_46 OUT_44, OUT(44)
#define OUT_48 OUT_46, OUT(46)
#define OUT_50 OUT_48, OUT(48)
#define OUT_52 OUT_50, OUT(50)
#define OUT_54 OUT_52, OUT(52)
#define OUT_56 OUT_54, OUT(54)
#define OUT_58 OUT_56, OUT(56)
#define OUT_60 OUT_58, OUT(58)
#define OUT_62 OUT_60, OUT(60)
#define OUT_64 OUT_62, OUT(62)
#define OUT_68 OUT_64, OUT(64), OUT(66)
#define OUT_72 OUT_68, OUT(68), OUT(70)
#define OUT_76 OUT_72, OUT(72), OUT(74)
#define OUT_80 OUT_76, OUT(76), OUT(78)
#define OUT_84 OUT_80, OUT(80), OUT(82)
#define OUT_88 OUT_84, OUT(84), OUT(86)
#define OUT_92 OUT_88, OUT(88), OUT(90)
#define OUT_96 OUT_92, OUT(92), OUT(94)
#define OUT_100 OUT_96, OUT(96), OUT(98)
#define OUT_104 OUT_100, OUT(100), OUT(102)
#define OUT_108 OUT_104, OUT(104), OUT(106)
#define OUT_112 OUT_108, OUT(108), OUT(110)
#define OUT_116 OUT_112, OUT(112), OUT(114)
#define OUT_120 OUT_116, OUT(116), OUT(118)
#define OUT_124 OUT_120, OUT(120), OUT(122)
#define OUT_128 OUT_124, OUT(124), OUT(126)
