/* loads: ldmatrix and wmma.load: what they put into which register of which lane.

By hand       nothing: registers are stored as they are, those of a lane side by side
Signs         sm_80: LDSM; sm_90: LDSM
Needs         sm_80; one warp; lines on multiples of 32 bytes
Note          ldmatrix.trans hands out columns of 8 x 8 matrices of 16 bits; nothing transposes
              others. The fragments of wmma are the machine's affair: this shows them.
*/

#include "one_wmma.cuh"

// Lanes 0 to 8 count - 1 point to a row of 16 bytes each: count matrices below each other.
#define LDMATRIX(symbol, count, opcode, out, list)                                         \
    __global__ void symbol(Operands o, int) {                                              \
        __shared__ uint4 rows[8 * count];                                                  \
        const int row = threadIdx.x % (8 * count);                                         \
        const char* from = static_cast<const char*>(o.a) + row * o.lda * 2;                \
        if (threadIdx.x < 8 * count) rows[row] = *reinterpret_cast<const uint4*>(from);    \
        __syncwarp();                                                                      \
        uint32_t x[count];                                                                 \
        const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&rows[row]));   \
        asm volatile(opcode " " list ";" : out : "r"(at) : "memory");                      \
        for (int i = 0; i < count; ++i)                                                    \
            static_cast<uint32_t*>(o.d)[threadIdx.x * count + i] = x[i];                   \
    }
#define OUT_1 "=r"(x[0])
#define OUT_2 OUT_1, "=r"(x[1])
#define OUT_4 OUT_2, "=r"(x[2]), "=r"(x[3])
#define LDMATRIX_KERNEL(count, suffix, trans, list)                                      \
    LDMATRIX(ldmatrix_x##count##suffix, count,                                           \
             "ldmatrix.sync.aligned.m8n8.x" #count trans ".shared.b16", OUT_##count, list)
#define LDMATRIX_ROW(count, suffix, trans, list) \
    {"ldmatrix.x" #count trans, ldmatrix_x##count##suffix, 0},
#define FOR_LDMATRIX(X)                         \
    X(1, , "", "{%0}, [%1]")                    \
    X(2, , "", "{%0,%1}, [%2]")                 \
    X(4, , "", "{%0,%1,%2,%3}, [%4]")           \
    X(1, _trans, ".trans", "{%0}, [%1]")        \
    X(2, _trans, ".trans", "{%0,%1}, [%2]")     \
    X(4, _trans, ".trans", "{%0,%1,%2,%3}, [%4]")

// The stores of a number of registers of 4 or 8 bytes.
#define STORE(bits, i, at) "st.global.b" #bits " [to+" #at "], r" #i ";\n"
#define STORE_32_1 STORE(32, 0, 0)
#define STORE_32_2 STORE_32_1 STORE(32, 1, 4)
#define STORE_32_4 STORE_32_2 STORE(32, 2, 8) STORE(32, 3, 12)
#define STORE_32_8 STORE_32_4 STORE(32, 4, 16) STORE(32, 5, 20) STORE(32, 6, 24) STORE(32, 7, 28)
#define STORE_64_1 "st.global.f64 [to], r0;\n"
#define STORE_64_2 STORE_64_1 "st.global.f64 [to+8], r1;\n"

#define WMMA_LOAD(symbol, opcode, word, bits, count)                                       \
    __global__ void symbol(Operands o, int) {                                              \
        char* to = static_cast<char*>(o.d) + threadIdx.x * (count * bits / 8);             \
        asm volatile("{\n.reg ." word " r<8>;\n.reg .b64 to;\nmov.b64 to, %1;\n"           \
                     opcode " " LIST_##count("r") ", [%0], %2;\n" STORE_##bits##_##count   \
                     "}" ::"l"(o.a), "l"(to), "r"(o.lda) : "memory");                      \
    }
#define LOAD_KERNEL(operand, layout, shape, type, word, bits, count)                       \
    WMMA_LOAD(load_##operand##_##layout##_##shape##_##type,                                \
              "wmma.load." #operand ".sync.aligned." #layout "." #shape "." #type, word,   \
              bits, count)
#define LOAD_ROW(operand, layout, shape, type, word, bits, count) \
    {"wmma.load." #operand "." #layout "." #shape "." #type,      \
     load_##operand##_##layout##_##shape##_##type, 0},

#define BOTH(X, operand, ...) X(operand, row, __VA_ARGS__) X(operand, col, __VA_ARGS__)
// Registers of A and of B in m16n16k16, m8n32k16 and m32n8k16.
#define FOR_WMMA_SHAPES(X, type, a16, b16, a8, b32, a32, b8)                                 \
    BOTH(X, a, m16n16k16, type, "b32", 32, a16) BOTH(X, b, m16n16k16, type, "b32", 32, b16)  \
    BOTH(X, a, m8n32k16, type, "b32", 32, a8) BOTH(X, b, m8n32k16, type, "b32", 32, b32)     \
    BOTH(X, a, m32n8k16, type, "b32", 32, a32) BOTH(X, b, m32n8k16, type, "b32", 32, b8)
#define FOR_SUMS(X, type, count)                                                             \
    BOTH(X, c, m16n16k16, type, "b32", 32, count) BOTH(X, c, m8n32k16, type, "b32", 32, count) \
    BOTH(X, c, m32n8k16, type, "b32", 32, count)
#define FOR_WMMA(X)                                                                          \
    FOR_WMMA_SHAPES(X, f16, 8, 8, 8, 8, 8, 8) FOR_WMMA_SHAPES(X, bf16, 4, 4, 2, 8, 8, 2)     \
    FOR_WMMA_SHAPES(X, s8, 2, 2, 1, 4, 4, 1) FOR_WMMA_SHAPES(X, u8, 2, 2, 1, 4, 4, 1)        \
    FOR_SUMS(X, f16, 4) FOR_SUMS(X, f32, 8) FOR_SUMS(X, s32, 8)                              \
    BOTH(X, a, m16n16k8, tf32, "b32", 32, 4) BOTH(X, b, m16n16k8, tf32, "b32", 32, 4)        \
    BOTH(X, c, m16n16k8, f32, "b32", 32, 8)                                                  \
    BOTH(X, a, m8n8k4, f64, "f64", 64, 1) BOTH(X, b, m8n8k4, f64, "f64", 64, 1)              \
    BOTH(X, c, m8n8k4, f64, "f64", 64, 2)                                                    \
    X(a, row, m8n8k32, s4, "b32", 32, 1) X(b, col, m8n8k32, s4, "b32", 32, 1)                \
    X(a, row, m8n8k32, u4, "b32", 32, 1) X(b, col, m8n8k32, u4, "b32", 32, 1)                \
    BOTH(X, c, m8n8k32, s32, "b32", 32, 2)                                                   \
    X(a, row, m8n8k128, b1, "b32", 32, 1) X(b, col, m8n8k128, b1, "b32", 32, 1)              \
    BOTH(X, c, m8n8k128, s32, "b32", 32, 2)

FOR_LDMATRIX(LDMATRIX_KERNEL)
FOR_WMMA(LOAD_KERNEL)
WMMA_RUN(FOR_LDMATRIX(LDMATRIX_ROW) FOR_WMMA(LOAD_ROW))
