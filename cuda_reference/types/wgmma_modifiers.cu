/* wgmma_modifiers: wgmma with A from registers, with A or B negated, and with D set, not added to.

By hand       which thread holds which element of A; the predicate and the signs after B
Signs         sm_90: HGMMA, QGMMA, IGMMA, BGMMA, no HMMA
Needs         sm_90a; one warpgroup; lines on multiples of 32 bytes
Note          Of the many N the smallest and the largest. scale-d = 0 leaves C unread. A from
              registers is stored by rows, whatever its type.
*/

#include "one_wgmma.cuh"

// The operands after D's registers: scale-d, and A's registers. Those come as four words: of two
// words of 64 bits, unpacked here, ptxas 13.0 hands WGMMA the lower half of the first one twice.
#define KEEP_2 "%4"
#define A_2 "{%5,%6,%7,%8}"
#define KEEP_4 "%6"
#define A_4 "{%7,%8,%9,%10}"
#define KEEP_64 "%66"
#define A_64 "{%67,%68,%69,%70}"
#define KEEP_128 "%130"
#define A_128 "{%131,%132,%133,%134}"

#define SHARED(registers) "%0"
#define IN_REGISTERS(registers) A_##registers

// As WGMMA, where A is SHARED or IN_REGISTERS and `tail` are the signs and the majors.
#define MODIFIED(number, registers, from, mma, tail)                                     \
    case number:                                                                         \
        asm volatile(                                                                    \
            "{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP_##registers ", 0;\n"          \
            "wgmma.fence.sync.aligned;\n"                                                \
            "wgmma.mma_async.sync.aligned." mma " {" REGISTERS_##registers "}, "         \
            from(registers) ", %1, keep" tail ";\n"                                      \
            "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"      \
            : "+l"(a), "+l"(b), OUT_##registers                                          \
            : "r"(o.scale_d), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) \
            : "memory");                                                                 \
        break;

// The kernel `symbol`, as WGMMA_KERNEL. `in_registers` is said of the variant.
#define KERNEL(symbol, N, bits, registers, a_by_columns, b_by_rows, in_registers, ...) \
    __global__ void __launch_bounds__(128) symbol(Operands o, int variant) {           \
        using Tile = WgmmaTile<N, bits, registers>;                                    \
        __shared__ __align__(1024) char shared[Tile::A_BYTES + Tile::B_BYTES];         \
        uint32_t d[registers];                                                         \
        uint32_t words[4] = {};                                                        \
        uint64_t a, b;                                                                 \
        Tile::load(o, shared, a_by_columns, b_by_rows, a, b, d);                       \
        if (in_registers) Tile::load_a(o, words);                                      \
        switch (variant) { __VA_ARGS__ }                                               \
        Tile::store(o, d);                                                             \
    }

// X(..., s, texts of both signs, their words in the name) for the four pairs of signs.
#define FOR_SIGNS(X, ...)                    \
    X(__VA_ARGS__, 0, ", 1, 1", "")          \
    X(__VA_ARGS__, 1, ", -1, 1", ".minus_a") \
    X(__VA_ARGS__, 2, ", 1, -1", ".minus_b") \
    X(__VA_ARGS__, 3, ", -1, -1", ".minus_a.minus_b")

// f16 and bf16: bit 3 of the variant is A's major, bit 2 is B's; from 16 on A is in registers.
#define CASES_16(registers, mma, s, signs, words)               \
    MODIFIED(s, registers, SHARED, mma, signs ", 0, 0")         \
    MODIFIED(4 + s, registers, SHARED, mma, signs ", 0, 1")     \
    MODIFIED(8 + s, registers, SHARED, mma, signs ", 1, 0")     \
    MODIFIED(12 + s, registers, SHARED, mma, signs ", 1, 1")    \
    MODIFIED(16 + s, registers, IN_REGISTERS, mma, signs ", 0") \
    MODIFIED(20 + s, registers, IN_REGISTERS, mma, signs ", 1")
#define KERNEL_16(AB, D, N, registers)                                 \
    KERNEL(wgmma_m64n##N##k16_##D##_##AB##_modified, N, 16, registers, \
           variant < 16 && variant & 8, variant & 4, variant >= 16,    \
           FOR_SIGNS(CASES_16, registers, "m64n" #N "k16." #D "." #AB "." #AB))
#define ROW_16(AB, D, N, A, B, variant, words)                      \
    {"wgmma.m64n" #N "k16." #A "." #B "." #D "." #AB "." #AB words, \
     wgmma_m64n##N##k16_##D##_##AB##_modified, variant},
#define ROWS_16_OF(AB, D, N, s, signs, words)              \
    ROW_16(AB, D, N, row, col, s, words)                   \
    ROW_16(AB, D, N, row, row, 4 + s, words)               \
    ROW_16(AB, D, N, col, col, 8 + s, words)               \
    ROW_16(AB, D, N, col, row, 12 + s, words)              \
    ROW_16(AB, D, N, row, col, 16 + s, ".registers" words) \
    ROW_16(AB, D, N, row, row, 20 + s, ".registers" words)
#define ROWS_16(AB, D, N, registers) FOR_SIGNS(ROWS_16_OF, AB, D, N)

// tf32: from 4 on A is in registers.
#define CASES_2(registers, mma, first, s, signs, words) \
    MODIFIED(first + s, registers, SHARED, mma, signs)  \
    MODIFIED(first + 4 + s, registers, IN_REGISTERS, mma, signs)
#define ROWS_2(name, symbol, first, s, signs, words) \
    {name words, symbol, first + s}, {name ".registers" words, symbol, first + 4 + s},
#define KERNEL_TF32(N, registers)                                                        \
    KERNEL(wgmma_m64n##N##k8_tf32_modified, N, 32, registers, false, false, variant & 4, \
           FOR_SIGNS(CASES_2, registers, "m64n" #N "k8.f32.tf32.tf32", 0))
#define ROWS_TF32(N, registers)                                   \
    FOR_SIGNS(ROWS_2, "wgmma.m64n" #N "k8.row.col.f32.tf32.tf32", \
              wgmma_m64n##N##k8_tf32_modified, 0)

// e4m3 and e5m2: eight variants for each pair.
#define KERNEL_FP8(D, N, registers)                                                           \
    KERNEL(wgmma_m64n##N##k32_##D##_fp8_modified, N, 8, registers, false, false, variant & 4, \
           FOR_SIGNS(CASES_2, registers, "m64n" #N "k32." #D ".e4m3.e4m3", 0)                 \
           FOR_SIGNS(CASES_2, registers, "m64n" #N "k32." #D ".e4m3.e5m2", 8)                 \
           FOR_SIGNS(CASES_2, registers, "m64n" #N "k32." #D ".e5m2.e4m3", 16)                \
           FOR_SIGNS(CASES_2, registers, "m64n" #N "k32." #D ".e5m2.e5m2", 24))
#define ROWS_FP8_OF(D, N, types, first)                        \
    FOR_SIGNS(ROWS_2, "wgmma.m64n" #N "k32.row.col." #D types, \
              wgmma_m64n##N##k32_##D##_fp8_modified, first)
#define ROWS_FP8(D, N, registers)                                         \
    ROWS_FP8_OF(D, N, ".e4m3.e4m3", 0) ROWS_FP8_OF(D, N, ".e4m3.e5m2", 8) \
    ROWS_FP8_OF(D, N, ".e5m2.e4m3", 16) ROWS_FP8_OF(D, N, ".e5m2.e5m2", 24)

// Integers and bits have no signs to turn: odd variants have A in registers.
#define CASES_S32(registers, mma, first)        \
    MODIFIED(first, registers, SHARED, mma, "") \
    MODIFIED(first + 1, registers, IN_REGISTERS, mma, "")
#define ROWS_S32(name, symbol, first) \
    {name, symbol, first}, {name ".registers", symbol, first + 1},
#define KERNEL_S8(N, registers)                                                        \
    KERNEL(wgmma_m64n##N##k32_s8_modified, N, 8, registers, false, false, variant & 1, \
           CASES_S32(registers, "m64n" #N "k32.s32.s8.s8", 0)                          \
           CASES_S32(registers, "m64n" #N "k32.s32.s8.u8", 2)                          \
           CASES_S32(registers, "m64n" #N "k32.s32.u8.s8", 4)                          \
           CASES_S32(registers, "m64n" #N "k32.s32.u8.u8", 6)                          \
           CASES_S32(registers, "m64n" #N "k32.satfinite.s32.s8.s8", 8)                \
           CASES_S32(registers, "m64n" #N "k32.satfinite.s32.s8.u8", 10)               \
           CASES_S32(registers, "m64n" #N "k32.satfinite.s32.u8.s8", 12)               \
           CASES_S32(registers, "m64n" #N "k32.satfinite.s32.u8.u8", 14))
#define ROWS_S8_OF(N, types, first) \
    ROWS_S32("wgmma.m64n" #N "k32.row.col.s32" types, wgmma_m64n##N##k32_s8_modified, first)
#define ROWS_S8(N, registers)                                                  \
    ROWS_S8_OF(N, ".s8.s8", 0) ROWS_S8_OF(N, ".s8.u8", 2)                      \
    ROWS_S8_OF(N, ".u8.s8", 4) ROWS_S8_OF(N, ".u8.u8", 6)                      \
    ROWS_S8_OF(N, ".s8.s8.satfinite", 8) ROWS_S8_OF(N, ".s8.u8.satfinite", 10) \
    ROWS_S8_OF(N, ".u8.s8.satfinite", 12) ROWS_S8_OF(N, ".u8.u8.satfinite", 14)
#define KERNEL_B1(N, registers)                                                         \
    KERNEL(wgmma_m64n##N##k256_b1_modified, N, 1, registers, false, false, variant & 1, \
           CASES_S32(registers, "m64n" #N "k256.s32.b1.b1.and.popc", 0))
#define ROWS_B1(N, registers)                                   \
    ROWS_S32("wgmma.m64n" #N "k256.row.col.s32.b1.b1.and.popc", \
             wgmma_m64n##N##k256_b1_modified, 0)

#define FOR_TYPES(DO, N, half, quarter)                                                  \
    DO##_16(f16, f32, N, half) DO##_16(f16, f16, N, quarter) DO##_16(bf16, f32, N, half) \
    DO##_TF32(N, half) DO##_FP8(f32, N, half) DO##_FP8(f16, N, quarter) DO##_S8(N, half) \
    DO##_B1(N, half)
// The largest N takes most of the time to compile. FEW_N has it for two types, which between them
// have A from registers, each sign and satfinite; the majors are in wgmma_f16.
#ifdef FEW_N
#define ALL(DO) FOR_TYPES(DO, 8, 4, 2) DO##_TF32(256, 128) DO##_S8(256, 128)
#else
#define ALL(DO) FOR_TYPES(DO, 8, 4, 2) FOR_TYPES(DO, 256, 128, 64)
#endif

ALL(KERNEL)
WGMMA_RUN(ALL(ROWS))
