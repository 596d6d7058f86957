"""What sm_90 (Hopper) adds to older architectures: TMA, WGMMA, clusters."""

from __future__ import annotations

import torch

from ..machine.driver import MOST_PROGRAMS
from ..problem import INTERPRETER, Device

#: Compute capability. All newer ones have TMA, none has WGMMA.
CAPABILITY = (9, 0)

#: Bytes that must divide addresses, strides and the inner side of a TMA box.
TMA_BYTES = 16
#: The most lines (rows or columns) of a TMA box.
BOX_LINES = 256
#: Bytes of a line that TMA swizzles; and of the lines of K of a stage, one to four of these, or of
#: K that is cut into short groups less.
LINE_BYTES = 128
DEPTHS = (128, 256, 512)
SHORT_DEPTHS = (32, 64)

#: Warps of a warpgroup; rows of the tile that it multiplies at a time, and columns, which are a
#: multiple of `COLUMN_STEP`.
WARPGROUP = 4
ROWS, COLUMN_STEP, MOST_COLUMNS = 64, 8, 256

#: Registers per thread before roles release and claim some, for up to two consumers and for three:
#: the warpgroups of 128 threads, one of them the producer's, share 65536.
REGISTERS = {1: 168, 2: 168, 3: 128}
#: fp32 accumulators of a thread, by consumers: 240 registers hold these and the addresses; with
#: three, ptxas plans for the registers before roles claim any. Then the same if half hold the sum
#: of earlier parts of K; and if a thread stores them and mirrors, at its own addresses.
ACCUMULATORS = {1: (192, 192, 128), 2: (192, 192, 128), 3: (96, 128, 64)}

#: The most programs of a cluster that share loads; and that share one tile's K.
SHARING = (2, 4)
MOST_EXCHANGING = MOST_PROGRAMS
#: Bytes of shared memory besides stages and output: barriers, and the roles' arguments.
RESERVE = 2048
#: The most stages of a ring that PTX addresses: two barriers for each, and two more, in the 512
#: bytes after them.
MOST_STAGES = 31
#: Buffers of a consumer's output; and of pieces of 8 columns, which are stored together.
MOST_BUFFERS, MOST_NARROW_BUFFERS = 4, 16
#: The most parts of K: the programs that add them up are counted in 8 bits (`parts`), the steps of
#: all parts in 32.
MOST_PARTS = 128


def has_tma(device: Device) -> bool:
    """Whether TMA moves tiles."""
    return device.capability >= CAPABILITY


def has_wgmma(device: Device) -> bool:
    """Whether WGMMA multiplies; Triton's interpreter counts as a device that has it."""
    return device.capability[0] == CAPABILITY[0]


def column_step(dtype: torch.dtype) -> int:
    """WGMMA's columns are multiples of this many; more with int8, if there are many columns."""
    return 2 * COLUMN_STEP if dtype == torch.int8 else COLUMN_STEP


def launches_early(device: Device) -> bool:
    """Whether a launch may begin before the previous one has ended; the kernel then waits for it.

    (Programmatic dependent launch.)
    """
    return has_tma(device) and device.name != INTERPRETER.name
