"""What sm_80 (Ampere) and every newer architecture offer."""

from __future__ import annotations

#: Compute capability; no kernel here supports older devices.
CAPABILITY = (8, 0)
#: And the one that tensor cores need to multiply fp8.
FP8_CAPABILITY = (8, 9)
#: The most programs of a launch: the first dimension of a CUDA grid.
MOST_PROGRAMS = 2**31 - 1
#: Warps of a program.
MOST_WARPS = 32
#: 32-bit registers and threads of an SM.
REGISTERS, THREADS = 2**16, 2048
#: Registers of a thread that hold a tile's accumulators in Triton, and of all threads of a program:
#: half of all there are. With more, the compiler gives up on WGMMA, or spills for minutes.
ACCUMULATORS, ALL_ACCUMULATORS = 128, REGISTERS // 2
#: The most elements of A's and B's tiles per thread: the code to load them grows with the number.
OPERANDS = 256
#: The least elements of K of a tensor-core instruction: for one-byte types, and for wider ones.
DEPTH_OF_BYTES, DEPTH = 32, 16
