// TMA, the Tensor Memory Accelerator: tensor maps on the host, tile loads and stores on the device.
#pragma once

#include <cuda.h>

#include "mbarrier.cuh"

constexpr int SWIZZLE_COLS = 64;  // 16-bit elements in the 128 bytes that a swizzled row holds

// A matrix of elements of `bytes` bytes, `rows` x `cols`, `pitch` elements apart, seen in boxes of
// `box_rows` rows of 128 bytes. In shared memory their 16-byte pieces are swizzled: piece p of row
// r is at p ^ (r % 8). Elements outside the matrix are read as zero and never written.
inline const char* encode_map(CUtensorMap* map, const void* base, CUtensorMapDataType type,
                              int bytes, int64_t rows, int64_t cols, int64_t pitch, int box_rows) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
    TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                         cudaEnableDefault, &status));
#else
    TRY(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status));
#endif
    if (status != cudaDriverEntryPointSuccess) return "the driver has no cuTensorMapEncodeTiled";
    const cuuint64_t size[2] = {cuuint64_t(cols), cuuint64_t(rows)};
    const cuuint64_t stride[1] = {cuuint64_t(pitch) * bytes};
    const cuuint32_t box[2] = {cuuint32_t(128 / bytes), cuuint32_t(box_rows)};
    const cuuint32_t step[2] = {1, 1};
    const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
        map, type, 2, const_cast<void*>(base), size, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return "cuTensorMapEncodeTiled refuses this matrix";
    return nullptr;
}

// The same of 16-bit elements.
inline const char* make_map(CUtensorMap* map, const void* base, int type, int64_t rows,
                            int64_t cols, int64_t pitch, int box_rows) {
    const auto known =
        type == BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return encode_map(map, base, known, 2, rows, cols, pitch, box_rows);
}

// Whether C can be written through a tensor map: rows of whole 16-byte pieces, since a store writes
// the whole of a piece of which a part is inside.
inline bool can_store_by_tma(const Call& call) {
    return call.N % 8 == 0 && call.ldc % 8 == 0 && reinterpret_cast<uintptr_t>(call.c) % 16 == 0;
}

// Passes an error text on.
#define TRY_MAP(call)                     \
    do {                                  \
        const char* text_ = (call);       \
        if (text_ != nullptr) return text_; \
    } while (0)

// Starts the copy of the box at (row, col) into `to`; its bytes count towards `barrier`.
__device__ inline void tma_load(void* to, const CUtensorMap* map, int row, int col,
                                uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(map), "r"(col), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// The same into `to` of every block of the cluster whose bit is set in `blocks`; each block's own
// barrier counts the bytes.
__device__ inline void tma_load_multicast(void* to, const CUtensorMap* map, int row, int col,
                                          uint64_t* barrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(map), "r"(col), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

// Starts the copy of the box `from` to (row, col), in this thread's bulk group.
__device__ inline void tma_store(const CUtensorMap* map, const void* from, int row, int col) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(col), "r"(row), "r"(shared_address(from))
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// The same for data that is not read soon: L2 drops it before it drops operands.
__device__ inline void tma_store_streaming(const CUtensorMap* map, const void* from, int row,
                                           int col) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint"
        " [%0, {%1, %2}], [%3], %4;" ::"l"(map),
        "r"(col), "r"(row), "r"(shared_address(from)), "l"(policy)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until at most `Pending` of this thread's stores still read their shared memory.
template <int Pending>
__device__ inline void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Makes this thread's ordinary writes to shared memory visible to TMA and to WGMMA.
__device__ inline void proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
