"""One tile of an entry, said in one of the `ways`: multiplied, or only compiled."""

from __future__ import annotations

from typing import Any

import torch

from cuda_reference.types.run import _pack as pack
from cuda_reference.types.table import BITS, DTYPES, Entry

from . import mma_sync
from .ways import Way


def multiply(
    way: Way, entry: Entry, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """D = A B + C, or what the entry has in its place, on the device of A.

    The operands are those of `cuda_reference.types.multiply`, but that fp32 is not rounded to tf32
    first. On the CPU, `tl.dot` alone, in Triton's interpreter. Raises ValueError where the entry
    can't be said this way.
    """
    operands = _operands(way, entry, a, b, c)
    way.kernel[(1,)](*_arguments(way, entry, operands), num_warps=warps(entry))
    return operands[-1][: entry.shape[0]]


def compiled(way: Way, entry: Entry) -> Any:
    """What Triton compiles for its active driver, of operands without data."""
    m, n, k = entry.shape
    shapes = ((m, k), entry.a), ((k, n), entry.b), ((m, n), entry.c)
    meta = (torch.empty(shape, dtype=DTYPES[type_], device="meta") for shape, type_ in shapes)
    arguments = _arguments(way, entry, _operands(way, entry, *meta))
    return way.kernel.warmup(*arguments, num_warps=warps(entry), grid=(1,))


def warps(entry: Entry) -> int:
    return 4 if entry.instruction == "wgmma" else 1


def _arguments(way: Way, entry: Entry, operands: tuple[torch.Tensor, ...]) -> tuple:
    strides = (stride for matrix in operands for stride in matrix.stride())
    return (*operands, *strides, *way.arguments(entry))


def _operands(way: Way, entry: Entry, a, b, c) -> tuple[torch.Tensor, ...]:
    """A, B, C and an empty D as the kernel takes them: laid out, and packed into bytes.

    Where the instruction multiplies several tiles at a time, they are copies.
    """
    if reason := way.why_not(entry):
        raise ValueError(f"{way.name} does not say {entry.name}: {reason}")
    copies = mma_sync.tile(entry).copies if way.name == "mma.sync" else 1
    a = _in_bytes(a, entry.a).repeat(copies, 1)
    b = _in_bytes(b.mT, entry.b).repeat(copies, 1).mT
    c = c.repeat(copies, 1)
    d = torch.empty(c.shape, dtype=DTYPES[entry.d], device=c.device)
    return _laid_out(a, entry.a_layout), _laid_out(b, entry.b_layout), c.contiguous(), d


def _in_bytes(lines: torch.Tensor, type_: str) -> torch.Tensor:
    bits = BITS[type_]
    return pack(lines, bits) if bits < 8 else lines


def _laid_out(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    return matrix.contiguous() if layout == "row" else matrix.mT.contiguous().mT
