"""The compile-time constants of a kernel whose warps have roles."""

from __future__ import annotations

import dataclasses

from triton.experimental.gluon.language import constexpr


@dataclasses.dataclass(frozen=True)
class Shape(str):
    """A launch's tiles and how they are computed; sizes in elements.

    A tile [BLOCK_M, BLOCK_N] is computed in steps of BLOCK_K, of which the ring holds `STAGES`, by
    `WARPS`. A program has `CONSUMERS`, which share a tile in slabs of `ROWS`, or take turns. Tiles
    come in the raster `ORDER`, in groups of GROUP_M. SPLIT_K programs share a tile's K; they all
    run at once if `TOGETHER`. If PARTS is more than 1, K is cut into as many fixed chunks, at
    places that follow from K alone: a program has one of them, or all if SPLIT_K is 1. EPI_N
    columns are stored at a time, through one of the `BUFFERS` of each consumer. Matrices are stored
    by rows (N) or columns (T); C is stored by threads, not by TMA, if it is n or t. Offsets in C
    have 64 bits if `WIDE`.

    The programs of a `CLUSTER` are one below the other and share each tile of B, or side by side
    and share A: `SHARED` says which. `TYPE` is that of A and of B, in PTX. If `PLAIN`, C is the
    accumulator. Else `BIAS` says whether the bias runs along the rows (m) or columns (n); then
    comes the `ACTIVATION`; for `LINES` see `epilogue_ops.load_operands`. If `GATED`, the activation
    is the gate's, and C has one column per two of the tile. If C is `TRIANGULAR`, tiles have
    elements on or below its diagonal, and are stored with their mirrors. In a cluster's program
    RING bytes precede the barriers. They are the stages and, from SLOTS on if it isn't 0, the
    partial sums that the program receives; else these reuse the stages' memory. The next launch
    may begin with this one, or, if `LATE`, once each program has multiplied its one tile. `GROUPS`
    are cut along m, n or k, if at all, and there are at most MOST_GROUPS, a power of two. For
    `SUMS` see `Problem`; scales cover `A_LINES` rows and `B_LINES` columns, 0 for all. If K runs
    over several `PRODUCTS` of planes, A_PLANES and B_PLANES have two bits for each one's plane.
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
    TRIANGULAR: bool = False
    RING: int = 0
    SLOTS: int = 0
    LATE: bool = False
    GROUPS: str = ""
    MOST_GROUPS: int = 32
    SUMS: str = "whole"
    A_LINES: int = 1
    B_LINES: int = 1
    PRODUCTS: int = 1
    A_PLANES: int = 0
    B_PLANES: int = 0

    def __new__(cls, *args, **fields):
        """The text that Triton's hooks write in their JSON descriptions of compiled kernels."""
        return super().__new__(cls, f"{args}, {fields}")

    #: Of that text, which follows from the fields; theirs would be worked out at each question.
    __hash__ = str.__hash__

    def __post_init__(self) -> None:
        """Make each field a constexpr: attributes of a constexpr object are not, in a kernel."""
        for name, value in vars(self).copy().items():
            object.__setattr__(self, name, constexpr(value))
