"""Addresses and mask of a ragged tile, by the lines of `relu_kernel` in docs/primer/kernels.py."""

import torch

from . import draw
from .draw import LIGHT, MARGIN, WIDTH, Panel, picture

#: Of the matrix, its rows' distance in memory, and the tile.
M, N, STRIDE = 6, 11, 11
BLOCK_M, BLOCK_N = 4, 8
#: The program whose tile is shown.
PROGRAM = (1, 1)


def tile() -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets from the matrix's first element, and whether each is inside it."""
    rows = PROGRAM[0] * BLOCK_M + torch.arange(BLOCK_M)
    cols = PROGRAM[1] * BLOCK_N + torch.arange(BLOCK_N)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    return rows[:, None] * STRIDE + cols[None, :], mask


def ragged() -> str:
    """The matrix with its four tiles; the last one reaches past both ends."""
    down, across = (2 * BLOCK_M, 2 * BLOCK_N)
    side, high = (WIDTH - 2 * MARGIN - 4) / across, 24
    offsets, mask = tile()
    first = int(offsets[0, N - BLOCK_N])  # past the end of the tile's first row
    left = MARGIN + 2
    shapes = []

    def box(row: int, col: int, fill: str, words: str, color: str = draw.INK) -> None:
        place = (left + col * side, row * high, side, high)
        shapes.append(draw.cell(*place, fill, words, color))

    for row in range(M):
        for col in range(N):
            box(row, col, LIGHT[0], str(row * STRIDE + col))
    for row in range(BLOCK_M):
        for col in range(BLOCK_N):
            place = PROGRAM[0] * BLOCK_M + row, PROGRAM[1] * BLOCK_N + col
            inside = bool(mask[row, col])
            words = str(int(offsets[row, col]))
            box(*place, LIGHT[2] if inside else "#e8e8e8", words, draw.INK if inside else draw.GREY)
    for row in range(0, down, BLOCK_M):
        for col in range(0, across, BLOCK_N):
            place = (left + col * side, row * high, BLOCK_N * side, BLOCK_M * high)
            shapes.append(draw.rect(*place, "none", draw.INK, 1.4))
    return picture(
        "Offsets and mask of a ragged tile",
        draw.paragraph(
            f"A matrix of {M} x {N}, stored row after row, under four tiles of {BLOCK_M} x "
            f"{BLOCK_N}. A number is row * {STRIDE} + column."
        ),
        draw.legend([(LIGHT[2], f"program {PROGRAM}, mask true"), ("#e8e8e8", "mask false"),
                     (LIGHT[0], "other programs'")]),
        Panel(down * high + 8, shapes),
        draw.paragraph(
            f"The grey {first} is also the offset of row {first // STRIDE}, column "
            f"{first % STRIDE}. Without a mask, this program would write there."
        ),
    )  # fmt: skip
