// wmma.mma on one tile, in PTX: C++ has no rounding modes for f64. The registers are PTX's own;
// which thread holds which element of a fragment is the machine's affair.
#pragma once

#include "instruction.cuh"

// The list of the 1, 2, 4 or 8 registers of a fragment, in PTX.
#define LIST_1(r) "{" r "0}"
#define LIST_2(r) "{" r "0," r "1}"
#define LIST_4(r) "{" r "0," r "1," r "2," r "3}"
#define LIST_8(r) "{" r "0," r "1," r "2," r "3," r "4," r "5," r "6," r "7}"

// The kernel `symbol`, of texts: `mma` is the instruction, ab_type, c_type and d_type are the types
// of elements, `word` the type of a register, and `prepare` works on the loaded fragments. C and D
// are accumulators in memory, each by rows or by columns.
#define WMMA(symbol, mma, shape, a_layout, b_layout, ab_type, c_type, d_type, word, a_list,       \
             b_list, c_list, d_list, prepare)                                                     \
    __global__ void symbol(Operands o, int) {                                                     \
        asm volatile(                                                                             \
            "{\n.reg ." word " a<8>, b<8>, c<8>, d<8>;\n.reg .pred c_col, d_col;\n"               \
            "setp.ne.b32 c_col, %8, 0;\nsetp.ne.b32 d_col, %9, 0;\n"                              \
            "wmma.load.a.sync.aligned." a_layout "." shape "." ab_type " " a_list ", [%0], %4;\n" \
            "wmma.load.b.sync.aligned." b_layout "." shape "." ab_type " " b_list ", [%1], %5;\n" \
            "@c_col wmma.load.c.sync.aligned.col." shape "." c_type " " c_list ", [%2], %6;\n"    \
            "@!c_col wmma.load.c.sync.aligned.row." shape "." c_type " " c_list ", [%2], %6;\n"   \
            prepare mma " " d_list ", " a_list ", " b_list ", " c_list ";\n"                      \
            "@d_col wmma.store.d.sync.aligned.col." shape "." d_type " [%3], " d_list ", %7;\n"   \
            "@!d_col wmma.store.d.sync.aligned.row." shape "." d_type " [%3], " d_list ", %7;\n}" \
            :                                                                                     \
            : "l"(o.a), "l"(o.b), "l"(o.c), "l"(o.d), "r"(o.lda), "r"(o.ldb), "r"(o.ldc),         \
              "r"(o.ldd), "r"(o.c_by_columns), "r"(o.d_by_columns)                                \
            : "memory");                                                                          \
    }

// X(..., a_layout, b_layout) for the four layouts of A and B.
#define FOR_LAYOUTS(X, ...)                           \
    X(__VA_ARGS__, row, row) X(__VA_ARGS__, row, col) \
    X(__VA_ARGS__, col, row) X(__VA_ARGS__, col, col)

// X(..., shape, a_layout, b_layout) for the shapes of 8- and 16-bit types.
#define FOR_SHAPES(X, ...)                 \
    FOR_LAYOUTS(X, __VA_ARGS__, m16n16k16) \
    FOR_LAYOUTS(X, __VA_ARGS__, m8n32k16)  \
    FOR_LAYOUTS(X, __VA_ARGS__, m32n8k16)

// The library's function. `rows` are the rows of the table that holds its instructions.
#define WMMA_RUN(rows)                                       \
    static const Instruction table[] = {rows};               \
    EXPORT run(const char* name, const Operands* operands) { \
        return run_one(table, name, 32, *operands);          \
    }
