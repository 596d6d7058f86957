"""Bank conflicts of plain, padded and permuted tiles, counted from the kernels' own layouts.

CUDA's are the functions `Layout::ab` and `Layout::c` of its sources; Triton's the layout that
`mma_sync.shared_layout` gives.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tritemm.kernels.device import mma_sync

from . import draw
from .draw import MARGIN, Panel, picture
from .formulas import constant, cuda

#: Bytes of all banks together, and of a chunk.
BANKS, CHUNK = 128, 16
#: (row, chunk) of a tile -> the chunk of shared memory.
Place = Callable[[int, int], int]
#: Of each source the text before what `Layout::ab` and `Layout::c` return.
_AB = "ab(int row, int chunk) { return "
_C = "c(int row, int chunk) { return "
_BROKEN = "ab(int row, int chunk) {\n        return "
PLAIN, PADDED, PERMUTED = "mma_base.cu", "wmma_padding.cu", "mma_permuted.cu"


def place(layout, row: int, chunk: int, inner: int) -> int:
    """The first byte of a chunk in a tile of Triton's, whose rows have `inner` 16-bit elements."""
    pairs = getattr(layout, "interval_padding_pairs", None)
    if pairs:
        element = row * inner + chunk * 8
        return 2 * (element + sum(element // interval * padding for interval, padding in pairs))
    phase = row // layout.per_phase % layout.max_phase
    return 2 * row * inner + CHUNK * (chunk ^ phase)


def ways(kind: str, lines: int, depth: int, side: str) -> int:
    """How many of the 8 chunks that ldmatrix reads at once meet in a bank, at worst."""
    layout = mma_sync.shared_layout(kind, lines, depth, side)
    inner, rows = (depth, lines) if side == "K" else (lines, depth)
    worst = 0
    for first in range(0, rows, 8):
        for chunk in range(inner // 8):
            spots = [place(layout, first + i, chunk, inner) % BANKS for i in range(8)]
            worst = max(worst, *(spots.count(spot) for spot in spots))
    return worst


def of_operands(file: str) -> Place:
    """`Layout::ab` of a CUDA source."""
    found = cuda(file, _BROKEN if file == PERMUTED else _AB)
    return lambda row, chunk: found(row=row, chunk=chunk)


def of_output(file: str) -> Place:
    """`Layout::c` of a CUDA source of mma."""
    found = cuda(file, _C)
    return lambda row, chunk: found(row=row, chunk=chunk)


def of_triton(kind: str) -> Place:
    """The same of the rung `permuted`, of its tile of A."""
    depth = constant(PLAIN, "BK")
    layout = mma_sync.shared_layout(kind, constant(PLAIN, "BM"), depth, "K")
    return lambda row, chunk: place(layout, row, chunk, depth) // CHUNK


def together(place: Place, rows: Sequence[int], chunk: int) -> list[int]:
    """How many of these rows' chunks lie in each of the 8 groups of 4 banks."""
    groups = [place(row, chunk) % (BANKS // CHUNK) for row in rows]
    return [groups.count(group) for group in range(BANKS // CHUNK)]


@dataclasses.dataclass(frozen=True)
class Counted:
    """Conflicts of a product by the formula: of the loads of fragments, and of C's staging."""

    loads: int
    staging: int


def counted(ab: Place, c: Place, size: int) -> Counted:
    """Accesses beyond the first to a bank at a time, of a CUDA rung with mma, for size³.

    ldmatrix.x4 reads four times 8 rows. C is staged by instructions whose lanes write 8 rows.
    """
    bm, bn, bk, wm, wn = (constant(PLAIN, name) for name in ("BM", "BN", "BK", "WM", "WN"))
    tiles, steps = size * size // (bm * bn), size // bk
    warps = (bm // wm) * (bn // wn)
    each = 0
    for row in range(0, wm + wn, 16):
        for k in range(bk // 16):
            for first, chunk in ((row, 2 * k), (row + 8, 2 * k), (row, 2 * k + 1),
                                 (row + 8, 2 * k + 1)):  # fmt: skip
                each += max(together(ab, range(first, first + 8), chunk)) - 1
    stored = 0
    for row in range(0, wm, 8):
        for chunk in range(wn // 8):
            stored += max(together(c, range(row, row + 8), chunk)) - 1
    return Counted(tiles * steps * warps * each, tiles * warps * stored)


def memory(spots: Mapping[tuple[int, int], int]) -> Panel:
    """The chunks (row, chunk) of 8 rows where they lie in lines of all banks.

    Chunk 0 of each row is marked, and below is how many of those share a group of banks.
    """
    left, wide, high = MARGIN + 4, 56, 20
    last = max(spots.values()) // 8
    shapes = [draw.grid(left, 0, 8 * wide, (last + 1) * high, last + 1, 8)]
    for (row, chunk), spot in spots.items():
        fill, color = (draw.BLUE, "#ffffff") if chunk == 0 else ("#ececec", draw.INK)
        x, y = left + spot % 8 * wide, spot // 8 * high
        shapes.append(draw.cell(x, y, wide, high, fill, f"{row}.{chunk}", color))
    for group, count in enumerate(together(lambda *at: spots[at], range(8), 0)):
        x, y = left + (group + 0.5) * wide, (last + 1) * high + 15
        color = draw.RED if count > 1 else draw.GREY
        shapes.append(draw.text(x, y, f"{count}x" if count else "-", draw.NORMAL, "middle", color))
    return Panel((last + 1) * high + 24, shapes)


def numbers() -> Panel:
    """Those of the banks, above such lines."""
    x, wide = MARGIN + 4, 56
    words = [f"{4 * i}-{4 * i + 3}" for i in range(8)]
    return Panel(
        16, [draw.note(x + (i + 0.5) * wide, 10, said, "middle") for i, said in enumerate(words)]
    )


LAYOUTS = {
    "Plain, rows of 64 bytes": of_operands(PLAIN),
    "Padded by 16 bytes, CUDA": of_operands(PADDED),
    "Permuted, CUDA: (chunk + row / 2) % 4": of_operands(PERMUTED),
    "Permuted, Triton: chunk ^ (row / 2) % 4": of_triton("permuted"),
}


def ldmatrix() -> str:
    """Chunk 0 of 8 rows in four layouts."""
    panels = []
    for words, layout in LAYOUTS.items():
        worst = max(together(layout, range(8), 0))
        said = f"{worst} reads of one bank" if worst > 1 else "no conflict"
        spots = {(row, chunk): layout(row, chunk) for row in range(8) for chunk in range(4)}
        panels += [draw.paragraph(f"{words}: {said}", draw.NORMAL), memory(spots)]
    return picture(
        "What ldmatrix reads at once: chunk 0 of 8 rows",
        draw.paragraph(
            "A line is the 32 banks once, 128 bytes; row.chunk is 16 bytes in 4 banks. What is "
            "read together is blue. The numbers below say how often each group of banks is read."
        ),
        numbers(),
        *panels,
    )
