// What one instruction of types/ is given, shown instead of multiplied: each thread's registers of
// A, B and C, or shared memory. D's registers are numbered, two numbers of 16 bits in each word.
#pragma once

#include <cstring>

#include "block.h"

inline uint64_t* shown[3];
inline char* shown_shared;

extern "C" void show_to(uint64_t* a, uint64_t* b, uint64_t* c, char* shared) {
    shown[0] = a;
    shown[1] = b;
    shown[2] = c;
    shown_shared = shared;
}

template <typename Word>
void show(int operand, const Word* registers, int count) {
    for (int i = 0; i < count; ++i) {
        uint64_t bits = 0;
        memcpy(&bits, &registers[i], sizeof(Word));
        shown[operand][threadIdx.x * count + i] = bits;
    }
}

template <typename Word>
void number(Word* d, int count) {
    for (int i = 0; i < count; ++i) {
        const uint64_t first = 2 * (threadIdx.x * count + i), both = first | (first + 1) << 16;
        memcpy(&d[i], &both, sizeof(Word));
    }
}

inline void show_wgmma(const char* shared, size_t bytes, uint32_t* d, int count,
                       const uint32_t* a) {
    show(0, a, 4);
    if (threadIdx.x == 0) memcpy(shown_shared, shared, bytes);
    show(2, d, count);
    number(d, count);
}

#define SHOW(a, na, b, nb, c, nc, d, nd) \
    show(0, a, na), show(1, b, nb), show(2, c, nc), number(d, nd)
#ifdef A_IN_REGISTERS
#define SHOW_WGMMA(shared, d, count) show_wgmma(shared, sizeof shared, d, count, words)
#else
inline const uint32_t no_words[4] = {};
#define SHOW_WGMMA(shared, d, count) show_wgmma(shared, sizeof shared, d, count, no_words)
#endif

#define __cvta_generic_to_shared(pointer) reinterpret_cast<uintptr_t>(pointer)
