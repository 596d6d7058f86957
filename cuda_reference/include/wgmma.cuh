// WGMMA: a warpgroup (four warps) multiplies tiles in shared memory, asynchronously.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". D is 64 x N in fp32: in thread t,
// d[4 j + i] is row 16 (t / 32) + (t % 32) / 4 + 8 (i / 2), column 8 j + 2 (t % 4) + i % 2.
#pragma once

#include "narrow.cuh"
#include "shared_address.cuh"

// Where an operand is: its address, and the distances between its 8 x 16-byte core matrices.
// Everything is in units of 16 bytes. swizzle: 0 none, 1 of 128 bytes, 2 of 64, 3 of 32.
__device__ inline uint64_t matrix_descriptor(const void* tile, int leading, int stride,
                                             int swizzle) {
    return uint64_t((shared_address(tile) & 0x3FFFF) >> 4) | uint64_t(leading >> 4) << 16 |
           uint64_t(stride >> 4) << 32 | uint64_t(swizzle) << 62;
}

// Rows of 128 swizzled bytes along K, as TMA writes them; 8 rows are 1024 bytes. A step of 16
// elements along K adds 32 bytes, 2 in the descriptor's units. The tile is 1024-byte aligned.
__device__ inline uint64_t swizzled_descriptor(const void* tile) {
    return matrix_descriptor(tile, 16, 1024, 1);
}

// Before the first WGMMA, and after other writes to its registers.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most `Pending` committed groups are unfinished.
template <int Pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#define WGMMA_REGS(t) \
    "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define WGMMA_ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_ACC16(i) WGMMA_ACC4(i), WGMMA_ACC4(i + 4), WGMMA_ACC4(i + 8), WGMMA_ACC4(i + 12)
#define WGMMA_ACC64(i) WGMMA_ACC16(i), WGMMA_ACC16(i + 16), WGMMA_ACC16(i + 32), WGMMA_ACC16(i + 48)

#define WGMMA_ACC_8 WGMMA_ACC4(0)
#define WGMMA_ACC_128 WGMMA_ACC64(0)
#define WGMMA_ACC_256 WGMMA_ACC64(0), WGMMA_ACC64(64)

#define WGMMA_REGS_8 "%0,%1,%2,%3"
#define WGMMA_REGS_128                                                                       \
    WGMMA_REGS() "," WGMMA_REGS(1) "," WGMMA_REGS(2) "," WGMMA_REGS(3) "," WGMMA_REGS(4) "," \
    WGMMA_REGS(5) ",%60,%61,%62,%63"
#define WGMMA_REGS_256                                                                        \
    WGMMA_REGS() "," WGMMA_REGS(1) "," WGMMA_REGS(2) "," WGMMA_REGS(3) "," WGMMA_REGS(4) ","  \
    WGMMA_REGS(5) "," WGMMA_REGS(6) "," WGMMA_REGS(7) "," WGMMA_REGS(8) "," WGMMA_REGS(9) "," \
    WGMMA_REGS(10) "," WGMMA_REGS(11) ",%120,%121,%122,%123,%124,%125,%126,%127"

template <typename T>
constexpr bool is_bf16 = false;
template <>
inline constexpr bool is_bf16<__nv_bfloat16> = true;

// a, b and keep are operand numbers: the descriptors, and whether D is added to or set.
#define WGMMA_TEXT(n, type, a, b, keep, b_by_rows)                                   \
    "{\n"                                                                            \
    ".reg .pred p;\n"                                                                \
    "setp.ne.b32 p, %" #keep ", 0;\n"                                                \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                  \
    " {" WGMMA_REGS_##n "}, %" #a ", %" #b ", p, 1, 1, 0, " #b_by_rows ";\n"         \
    "}\n"

#define WGMMA_DEFINE(name, n, a_at, b_at, keep_at, b_by_rows)                                    \
    template <typename T>                                                                        \
    __device__ inline void name(float (&d)[n / 2], uint64_t a, uint64_t b, int keep) {           \
        if constexpr (is_bf16<T>)                                                                \
            asm volatile(WGMMA_TEXT(n, "bf16", a_at, b_at, keep_at, b_by_rows)                   \
                         : WGMMA_ACC_##n                                                         \
                         : "l"(a), "l"(b), "r"(keep));                                           \
        else                                                                                     \
            asm volatile(WGMMA_TEXT(n, "f16", a_at, b_at, keep_at, b_by_rows)                    \
                         : WGMMA_ACC_##n                                                         \
                         : "l"(a), "l"(b), "r"(keep));                                           \
    }

// D[64 x n] = A[64 x 16] B[16 x n], plus D unless `keep` is 0. A is stored by rows (K-major), B by
// columns (K-major), or by rows (N-major) where the name says so.
WGMMA_DEFINE(wgmma_m64n8k16, 8, 4, 5, 6, 0)
WGMMA_DEFINE(wgmma_m64n8k16_b_by_rows, 8, 4, 5, 6, 1)
WGMMA_DEFINE(wgmma_m64n128k16, 128, 64, 65, 66, 0)
WGMMA_DEFINE(wgmma_m64n256k16, 256, 128, 129, 130, 0)

// Writes the 64 x N accumulator of a warpgroup whose first element is C[row][col]; what is
// outside C is left out. Any pitch; pairs are written at once where their address allows.
template <int N, typename T>
__device__ void store_accumulator(const float (&d)[N / 2], T* c, int64_t ldc, int row, int col,
                                  int M, int N_all) {
    const int thread = threadIdx.x % 128;
    const bool pairs = ldc % 2 == 0 && reinterpret_cast<uintptr_t>(c) % 4 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + thread / 32 * 16 + thread % 32 / 4 + half * 8;
        T* line = c + r * ldc;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            const int k = col + j * 8 + thread % 4 * 2;
            const float first = d[j * 4 + half * 2], second = d[j * 4 + half * 2 + 1];
            if (r < M && k + 1 < N_all && pairs) {
                *reinterpret_cast<uint32_t*>(line + k) = pack<T>(first, second);
            } else if (r < M) {
                if (k < N_all) narrow(first, line[k]);
                if (k + 1 < N_all) narrow(second, line[k + 1]);
            }
        }
    }
}
