/* mma: mma.sync m8n8k4, m16n8k8 and m16n8k16 of f16 and bf16, each fragment spelled out.

By hand       which thread holds which element of A, B, C and D
Signs         sm_80: HMMA, no LDSM; sm_90: HMMA, no HGMMA
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          m8n8k4 is Volta's: a warp multiplies four tiles, here four times the same one. sm_80
              and sm_90 emulate it with FFMA and shuffles; the others are one HMMA each.
*/

#include "instruction.cuh"

// m16n8k8 and m16n8k16. Lane = 4 g + t holds, at columns (A, C, D) or rows (B) 2 t and 2 t + 1:
// of A rows g and g + 8, for k16 again 8 columns on; of B column g, for k16 again 8 rows on;
// of C and D rows g and g + 8.
template <int K>
struct M16N8 {
    template <bool, bool>
    static __device__ void load(const Operands& o, uint32_t* a, uint32_t* b) {
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        for (int k = 0; k < K / 8; ++k) {
            a[2 * k] = pair(o.a, o.lda, g, 8 * k + 2 * t);
            a[2 * k + 1] = pair(o.a, o.lda, g + 8, 8 * k + 2 * t);
            b[k] = pair(o.b, o.ldb, g, 8 * k + 2 * t);
        }
    }

    template <bool F32>
    static __device__ void load_c(const Operands& o, uint32_t* c) {
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        load_two<F32>(o.c, o.ldc, g, 2 * t, c);
        load_two<F32>(o.c, o.ldc, g + 8, 2 * t, c + (F32 ? 2 : 1));
    }

    template <bool F32>
    static __device__ void store(const Operands& o, const uint32_t* d) {
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        store_two<F32>(o.d, o.ldd, g, 2 * t, d);
        store_two<F32>(o.d, o.ldd, g + 8, 2 * t, d + (F32 ? 2 : 1));
    }
};

// m8n8k4. Lanes 4 p ... 4 p + 3 and the same plus 16 (`high`) multiply tile p of four.
// q = lane % 4.
// A lane holds four elements of A: of row q + 4 high if A lies by rows, of column q and rows
// 4 high ... if by columns; of B: of row q and columns 4 high ..., or of column q + 4 high.
// Of C and D: in f16 row q + 4 high; in f32 a 2 x 2 block of neighbours, repeated 4 columns on,
// whose second row is 2 rows down.
struct M8N8K4 {
    template <bool A_BY_ROWS, bool B_BY_ROWS>
    static __device__ void load(const Operands& o, uint32_t* a, uint32_t* b) {
        const int q = threadIdx.x % 4, high = threadIdx.x / 16;
        for (int i = 0; i < 2; ++i) {
            a[i] = A_BY_ROWS ? pair(o.a, o.lda, q + 4 * high, 2 * i)
                             : pair(o.a, o.lda, q, 4 * high + 2 * i);
            b[i] = B_BY_ROWS ? pair(o.b, o.ldb, q, 4 * high + 2 * i)
                             : pair(o.b, o.ldb, q + 4 * high, 2 * i);
        }
    }

    // The row and the first column of pair i of C or D.
    template <bool F32>
    static __device__ int2 place(int i) {
        const int lane = threadIdx.x, high = lane / 16;
        if (F32) return {lane % 2 + 2 * (i % 2) + 4 * high, lane / 2 % 2 * 2 + i / 2 * 4};
        return {lane % 4 + 4 * high, 2 * i};
    }

    template <bool F32>
    static __device__ void load_c(const Operands& o, uint32_t* c) {
        for (int i = 0; i < 4; ++i) {
            const int2 at = place<F32>(i);
            load_two<F32>(o.c, o.ldc, at.x, at.y, c + (F32 ? 2 * i : i));
        }
    }

    template <bool F32>
    static __device__ void store(const Operands& o, const uint32_t* d) {
        if (threadIdx.x / 4 % 4) return;  // the other three tiles are the same
        for (int i = 0; i < 4; ++i) {
            const int2 at = place<F32>(i);
            store_two<F32>(o.d, o.ldd, at.x, at.y, d + (F32 ? 2 * i : i));
        }
    }
};

#define RESULTS_2 "{%0,%1}"
#define RESULTS_4 "{%0,%1,%2,%3}"
#define RESULTS_8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define OUT_2 "=r"(d[0]), "=r"(d[1])
#define OUT_4 OUT_2, "=r"(d[2]), "=r"(d[3])
#define OUT_8 OUT_4, "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7])
#define IN_1(r) "r"(r[0])
#define IN_2(r) IN_1(r), "r"(r[1])
#define IN_4(r) IN_2(r), "r"(r[2]), "r"(r[3])
#define IN_8(r) IN_4(r), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7])
#define IS_F32_f16 false
#define IS_F32_f32 true
#define BY_ROWS_row true
#define BY_ROWS_col false

// nd, na, nb and nc are numbers of registers; `inputs` names those of A, B and C behind D's.
#define KERNEL(Shape, shape, A, B, D, AB, C, nd, na, nb, nc, inputs)                            \
    __global__ void mma_##shape##_##A##_##B##_##D##_##AB##_##C(Operands o, int) {               \
        uint32_t a[na], b[nb], c[nc], d[nd];                                                    \
        Shape::load<BY_ROWS_##A, BY_ROWS_##B>(o, a, b);                                         \
        Shape::load_c<IS_F32_##C>(o, c);                                                        \
        asm volatile("mma.sync.aligned." #shape "." #A "." #B "." #D "." #AB "." #AB "." #C " " \
                     RESULTS_##nd ", " inputs ";"                                               \
                     : OUT_##nd                                                                 \
                     : IN_##na(a), IN_##nb(b), IN_##nc(c));                                     \
        Shape::store<IS_F32_##D>(o, d);                                                         \
    }
#define ROW(Shape, shape, A, B, D, AB, C, ...)                              \
    {"mma." #shape "." #A "." #B "." #D "." #AB "." #AB "." #C,             \
     mma_##shape##_##A##_##B##_##D##_##AB##_##C, 0},

#define M8N8K4_LAYOUT(X, A, B)                                                              \
    X(M8N8K4, m8n8k4, A, B, f16, f16, f16, 4, 2, 2, 4, "{%4,%5}, {%6,%7}, {%8,%9,%10,%11}") \
    X(M8N8K4, m8n8k4, A, B, f32, f16, f16, 8, 2, 2, 4,                                      \
      "{%8,%9}, {%10,%11}, {%12,%13,%14,%15}")                                              \
    X(M8N8K4, m8n8k4, A, B, f32, f16, f32, 8, 2, 2, 8,                                      \
      "{%8,%9}, {%10,%11}, {%12,%13,%14,%15,%16,%17,%18,%19}")

#define ALL(X)                                                                            \
    M8N8K4_LAYOUT(X, row, row)                                                            \
    M8N8K4_LAYOUT(X, row, col)                                                            \
    M8N8K4_LAYOUT(X, col, row)                                                            \
    M8N8K4_LAYOUT(X, col, col)                                                            \
    X(M16N8<8>, m16n8k8, row, col, f16, f16, f16, 2, 2, 1, 2, "{%2,%3}, {%4}, {%5,%6}")   \
    X(M16N8<8>, m16n8k8, row, col, f32, f16, f32, 4, 2, 1, 4,                             \
      "{%4,%5}, {%6}, {%7,%8,%9,%10}")                                                    \
    X(M16N8<8>, m16n8k8, row, col, f32, bf16, f32, 4, 2, 1, 4,                            \
      "{%4,%5}, {%6}, {%7,%8,%9,%10}")                                                    \
    X(M16N8<16>, m16n8k16, row, col, f16, f16, f16, 2, 4, 2, 2,                           \
      "{%2,%3,%4,%5}, {%6,%7}, {%8,%9}")                                                  \
    X(M16N8<16>, m16n8k16, row, col, f32, f16, f32, 4, 4, 2, 4,                           \
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13}")                                        \
    X(M16N8<16>, m16n8k16, row, col, f32, bf16, f32, 4, 4, 2, 4,                          \
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13}")

ALL(KERNEL)

static const Instruction table[] = {ALL(ROW)};

EXPORT run(const char* name, const Operands* operands) {
    return run_one(table, name, 32, *operands);
}
