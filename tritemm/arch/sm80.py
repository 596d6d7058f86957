"""What sm_80 (Ampere) has, and every newer architecture too."""

from __future__ import annotations

#: Compute capability; what is older has no kernel here.
CAPABILITY = (8, 0)
#: And what tensor cores need to multiply fp8.
FP8_CAPABILITY = (8, 9)
#: Programs of a launch: the first dimension of a CUDA grid.
MOST_PROGRAMS = 2**31 - 1
#: Warps of a program.
MOST_WARPS = 32
#: 32-bit registers and threads of an SM.
REGISTERS, THREADS = 2**16, 2048
#: Registers of a thread that hold a tile's accumulators in Triton, and of all threads of a program:
#: half of all there are. With more, the compiler gives up on WGMMA, or spills for minutes.
ACCUMULATORS, ALL_ACCUMULATORS = 128, REGISTERS // 2
#: Elements of A's and B's tiles for each thread: the code to load them grows with their number.
OPERANDS = 256
#: Elements of K that a tensor core takes at a time, at least: of one byte each, and of more.
DEPTH_OF_BYTES, DEPTH = 32, 16
