"""Shared memory as WGMMA reads it: core matrices, and the three swizzles.

From `cuda_reference.types.fragments.places` (tests/cuda/test_fragments.py), and from the places of
wgmma_m64n8k16.cu, which orders the same core matrices otherwise.
"""

import dataclasses

from cuda_reference.types import find
from cuda_reference.types.fragments import places
from cuda_reference.types.table import Entry

from . import draw
from .banks import CHUNK, memory, numbers
from .draw import LIGHT, MARGIN, Panel, picture
from .formulas import cuda

#: Bytes of an element.
ELEMENT = 2
WGMMA = find("wgmma.m64n16k16.row.col.f32.f16.f16")


def tile(swizzle: int, rows: int = 64, depth: int = 16) -> Entry:
    """wgmma whose A, by rows, is [rows, depth] with this swizzle."""
    return dataclasses.replace(WGMMA, swizzle=swizzle, shape=(rows, 16, depth))


def chunks(entry: Entry) -> dict[tuple[int, int], int]:
    """(row, chunk of 8 elements) of A -> the byte at which it begins."""
    return {(row, col // 8): bit // 8 for (row, col), bit in places(entry, "a").items()
            if col % 8 == 0}  # fmt: skip


def by_hand() -> dict[tuple[int, int], int]:
    """The same of wgmma_m64n8k16.cu, whose neighbours along M are adjacent."""
    place = cuda("wgmma_m64n8k16.cu", "a_place(int m, int k) { return ")
    return {(m, c): ELEMENT * place(m=m, k=8 * c) for m in range(64) for c in range(2)}


def distances(found: dict[tuple[int, int], int]) -> tuple[int, int]:
    """Bytes from a core matrix to its neighbour along K, and along M."""
    return found[0, 1] - found[0, 0], found[8, 0] - found[0, 0]


def core_matrices() -> str:
    """Two orders of the same core matrices, and one core matrix from within."""
    left, wide, high = MARGIN + 62, 96, 24
    core, shapes = [], []
    for (row, chunk), byte in sorted(chunks(tile(0)).items()):
        if row < 8 and chunk == 0:
            words = f"k 0 to 7: bytes {byte} to {byte + 15}"
            core.append(draw.cell(left, row * 20, 3 * wide, 20, LIGHT[0], words))
            core.append(draw.note(left - 6, row * 20 + 14, f"row {row}"))
    for nth, (found, words) in enumerate(((chunks(tile(0)), "K"), (by_hand(), "M"))):
        x = left + nth * (2 * wide + 14)
        shapes.append(draw.text(x + wide, 12, f"along {words} adjacent", anchor="middle"))
        for (row, chunk), byte in sorted(found.items()):
            if row % 8 == 0:
                at = (x + chunk * wide, 20 + row // 8 * high)
                shapes.append(draw.cell(*at, wide, high, LIGHT[chunk], f"byte {byte}"))
    for i in range(8):
        shapes.append(draw.note(left - 6, 20 + i * high + 16, f"{8 * i} to {8 * i + 7}"))
    first, second = distances(chunks(tile(0))), distances(by_hand())
    return picture(
        "Core matrices of A, 64 x 16, without a swizzle",
        draw.paragraph("A core matrix is 8 rows of 16 bytes, 128 bytes without a gap:"),
        Panel(8 * 20 + 8, core),
        draw.paragraph("Where each of the 8 x 2 core matrices begins, in two orders:"),
        draw.legend([(LIGHT[0], "k 0 to 7"), (LIGHT[1], "k 8 to 15")]),
        Panel(20 + 8 * high + 8, shapes),
        draw.paragraph(
            f"Both are right, since the descriptor states the distances: {first[0]} bytes along K "
            f"and {first[1]} along M to the left, {second[0]} and {second[1]} to the right."
        ),
    )


def modes() -> str:
    """One pattern of 8 rows of each mode."""
    panels = []
    for swizzle in (0, 32, 64, 128):
        width = swizzle or 16
        found = chunks(tile(swizzle, 8, width // ELEMENT))
        words = f"Rows of {swizzle} bytes" if swizzle else "No swizzle: rows of 16 bytes"
        spots = {at: byte // CHUNK for at, byte in found.items()}
        panels += [draw.paragraph(f"{words}, {8 * width} in a pattern", draw.NORMAL), memory(spots)]
    return picture(
        "The swizzle modes: where row.chunk is",
        draw.paragraph(
            "Each line is the 32 banks once, 128 bytes; a chunk is 16 bytes, 4 banks. Blue is the "
            "first chunk of all 8 rows, which WGMMA reads together. The numbers below say how "
            "often each group of banks is read."
        ),
        numbers(),
        *panels,
        draw.paragraph(
            "In every mode they fill all 32 banks exactly once. The number of a chunk is combined "
            "by exclusive or with bits of the number of the line: one bit for rows of 32 bytes, "
            "two for 64 and three for 128."
        ),
    )
