// mbarriers, TMA and WGMMA of fp8 on a CPU, by what the PTX ISA says of them: functions that stand
// in place of the asm. TMA copies, and WGMMA multiplies, at the moment they are asked to.
#pragma once

#include <cuda.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "launch.cuh"

// Addresses in shared memory begin at 0.
#define __cvta_generic_to_shared(pointer) \
    (reinterpret_cast<const char*>(pointer) - reinterpret_cast<const char*>(::shared))

inline void require(bool condition) {
    if (!condition) abort();
}

// In the 8 bytes of an mbarrier: what the current phase waits for, and how many have passed.
struct Phase {
    int32_t bytes;
    uint8_t arrivals, left;
    uint16_t passed;
};
inline Phase& phase(uint64_t* barrier) { return *reinterpret_cast<Phase*>(barrier); }

inline void pass(Phase& phase) {
    if (phase.left || phase.bytes) return;
    phase.left = phase.arrivals;
    ++phase.passed;
}
inline void init_barrier(uint64_t* barrier, int arrivals) {
    phase(barrier) = {0, uint8_t(arrivals), uint8_t(arrivals), 0};
}
inline void arrive(uint64_t* barrier, int bytes = 0) {
    require(phase(barrier).left > 0);
    phase(barrier).bytes += bytes;
    --phase(barrier).left;
    pass(phase(barrier));
}
inline bool has_passed(uint64_t* barrier, int parity) {
    static int in_vain;
    const bool done = phase(barrier).passed % 2 != parity;
    in_vain = done ? 0 : in_vain + 1;
    require(in_vain < 1 << 20);  // each waits for another
    if (!done) meet();           // the other threads run
    return done;
}

// In the 128 bytes of a tensor map.
struct Map {
    const uint8_t* base;
    int64_t cols, rows, pitch;  // the pitch in bytes
    int box_cols, box_rows, itemsize;
};

template <typename... Options>
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, int dims, void* base,
                      const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                      const cuuint32_t* step, Options...) {
    const int itemsize = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
    require(dims == 2 && reinterpret_cast<uintptr_t>(base) % 16 == 0 && stride[0] % 16 == 0);
    require(size[0] && size[1] && box[0] * itemsize == 128 && box[1] <= 256);
    const Map known = {static_cast<const uint8_t*>(base), int64_t(size[0]), int64_t(size[1]),
                       int64_t(stride[0]), int(box[0]), int(box[1]), itemsize};
    memcpy(map, &known, sizeof known);
    return CUDA_SUCCESS;
}

// The swizzle of 128 bytes: 16-byte piece p of row r of 8 is at p ^ r.
inline int swizzled(int address) { return address ^ (address >> 7 & 7) << 4; }

inline void copy_box(void* to, const CUtensorMap* map, int row, int col, uint64_t* barrier) {
    Map from;
    memcpy(&from, map, sizeof from);
    const int start = __cvta_generic_to_shared(to);
    require(start % 1024 == 0);
    for (int r = 0; r < from.box_rows; ++r)
        for (int i = 0; i < 128; ++i) {
            const int64_t at_row = int64_t(row) + r, at_col = int64_t(col) + i / from.itemsize;
            const bool inside = at_row < from.rows && at_col < from.cols;
            reinterpret_cast<uint8_t*>(::shared)[swizzled(start + r * 128 + i)] =
                inside ? from.base[at_row * from.pitch + col * from.itemsize + i] : 0;
        }
    phase(barrier).bytes -= from.box_rows * 128;
    pass(phase(barrier));
}

inline float e4m3(int bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
    const float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
    return bits & 0x80 ? -size : size;
}
inline const std::vector<float> E4M3 = [] {
    std::vector<float> values(256);
    for (int bits = 0; bits < 256; ++bits) values[bits] = e4m3(bits);
    return values;
}();

// Element (line, k) of an operand along K in swizzled rows of 128 bytes, as its descriptor says.
inline float element(uint64_t descriptor, int line, int k) {
    const int start = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    require(descriptor >> 62 == 1);
    const int address = start + line / 8 * stride + line % 8 * 128 + k;
    return E4M3[reinterpret_cast<const uint8_t*>(::shared)[swizzled(address)]];
}

// This thread's part of d[64 x N] = A[64 x 32] B[32 x N], plus d unless `keep` is 0.
template <int Registers>
void multiply_fp8(float (&d)[Registers], uint64_t a, uint64_t b, int keep) {
    const int thread = threadIdx.x % 128;
    for (int i = 0; i < Registers; ++i) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
        const int col = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = keep ? d[i] : 0;
        for (int k = 0; k < 32; ++k) sum += element(a, row, k) * element(b, col, k);
        d[i] = sum;
    }
}
