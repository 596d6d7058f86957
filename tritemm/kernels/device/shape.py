"""What a kernel whose warps have roles knows when it is compiled."""

from __future__ import annotations

import dataclasses

from triton.experimental.gluon.language import constexpr


@dataclasses.dataclass(frozen=True)
class Shape(str):
    """A launch's tiles and how they are made; sizes in elements.

    A tile [BLOCK_M, BLOCK_N] is computed in steps of BLOCK_K, of which the ring holds `STAGES`, by
    `WARPS`. A program has `CONSUMERS`, which share a tile in slabs of `ROWS`, or take turns. Tiles
    come in the raster `ORDER`, in groups of GROUP_M; K is cut into SPLIT_K parts, which run
    `TOGETHER` or as it happens. If there are `PARTS`, K is cut into these, at places that follow
    from K alone; a program has one of them, or all if SPLIT_K is 1. EPI_N columns are stored at a
    time, by way of one of the `BUFFERS` of each consumer. Matrices are stored by rows (N) or
    columns (T); C by threads if it is n or t. Offsets in C have 64 bits if `WIDE`.

    The programs of a `CLUSTER` lie one below the other and share each tile of B, or side by side
    and share A: `SHARED` says which. `TYPE` of the operands, in PTX. C gets
    the sums alone if `PLAIN`; else `BIAS` says along what the bias runs, rows (m) or columns (n),
    the sums then go through the `ACTIVATION`; `LINES` as of `finish.load_extra`. If it is `GATED`,
    those of the gate do, and C has a column for two of the tile's.
    """

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    STAGES: int
    WARPS: int
    CONSUMERS: int
    ROWS: int
    ORDER: str
    GROUP_M: int
    SPLIT_K: int
    CLUSTER: int
    EPI_N: int
    A_MAJOR: str
    B_MAJOR: str
    C_MAJOR: str
    BATCHED: bool
    WIDE: bool
    TYPE: str
    BUFFERS: int = 1
    SHARED: str = "b"
    TOGETHER: bool = False
    PARTS: int = 1
    PLAIN: bool = True
    LINES: bool = False
    BIAS: str = "n"
    ACTIVATION: str = ""
    GATED: bool = False

    def __new__(cls, *args, **fields):
        """Text, to those who write down what Triton compiles: its hooks do, in JSON."""
        return super().__new__(cls, f"{args}, {fields}")

    def __post_init__(self) -> None:
        """In a kernel, what is read of a constexpr is none."""
        for name, value in vars(self).copy().items():
            object.__setattr__(self, name, constexpr(value))
