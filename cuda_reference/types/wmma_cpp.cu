/* wmma_cpp: wmma.mma of s8 and u8 through the functions of CUDA C++, nvcuda::wmma.

By hand       nothing: fragments are objects, and which lane holds what is the compiler's secret
Signs         sm_80: IMMA; sm_90: IMMA, no IGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          What PTX calls satfinite is mma_sync's last argument, satf, which only integers have.
              A layout is a type of A and B, and an argument of loads and stores of C and D.
*/
#include <mma.h>

#include "instruction.cuh"

namespace wmma = nvcuda::wmma;

template <typename T, typename ALayout, typename BLayout>
__global__ void wmma_cpp(Operands o, int satf) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, ALayout> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, BLayout> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> c, d;
    wmma::load_matrix_sync(a, static_cast<const T*>(o.a), o.lda);
    wmma::load_matrix_sync(b, static_cast<const T*>(o.b), o.ldb);
    if (o.scale_d)
        wmma::load_matrix_sync(c, static_cast<const int*>(o.c), o.ldc,
                               o.c_by_columns ? wmma::mem_col_major : wmma::mem_row_major);
    else
        wmma::fill_fragment(c, 0);
    if (satf)
        wmma::mma_sync(d, a, b, c, true);
    else
        wmma::mma_sync(d, a, b, c);
    wmma::store_matrix_sync(static_cast<int*>(o.d), d, o.ldd,
                            o.d_by_columns ? wmma::mem_col_major : wmma::mem_row_major);
}

using row = wmma::row_major;
using col = wmma::col_major;

#define ROW(type, T, A, B)                                                                \
    {"wmma.m16n16k16." #A "." #B ".s32." #type "." #type ".s32", wmma_cpp<T, A, B>, 0},   \
    {"wmma.m16n16k16." #A "." #B ".s32." #type "." #type ".s32.satfinite", wmma_cpp<T, A, B>, 1},
#define ALL(type, T) \
    ROW(type, T, row, row) ROW(type, T, row, col) ROW(type, T, col, row) ROW(type, T, col, col)

EXPORT run(const char* name, const Operands* operands) {
    static const Instruction table[] = {ALL(s8, signed char) ALL(u8, unsigned char)};
    return run_one(table, name, 32, *operands);
}
