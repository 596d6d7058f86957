"""The tiles that cover a product: the one place on the host that counts them."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class TileSpace:
    """The tiles of a dense product: each of its matrices, M x N, is covered by itself.

    Grids, waves, workspace, limits and the cost model ask here (`Config.tiles`, `Problem.space`),
    as a kernel asks `Scheduler.tiles`. Another space, of a triangle or of groups, is another class
    with these methods.
    """

    M: int
    N: int
    batch: int

    @property
    def elements(self) -> int:
        """Elements of the product; no tiles are more."""
        return self.tiles(1, 1)

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of so many rows and columns."""
        return -(-self.M // rows) * -(-self.N // columns) * self.batch

    def bands(self, rows: int) -> int:
        """Rows of such tiles."""
        return self.tiles(rows, self.N)


class Triangle(TileSpace):
    """The tiles with elements on or below the diagonal of C, N x N, in whole squares of tiles.

    A square's side is the least that whole tiles make up, along and across.
    """

    def tiles(self, rows: int, columns: int) -> int:
        side = math.lcm(rows, columns)
        squares = -(-self.N // side)
        return squares * (squares + 1) // 2 * (side // rows) * (side // columns) * self.batch


@dataclasses.dataclass(frozen=True)
class Grouped(TileSpace):
    """The tiles of `batch` groups that a tensor on the device cuts M, N or K into (m, n, k).

    No tile is of two groups; what is left of M or N behind the last of them is one more. How many
    tiles that are the host can't know: these are the most.
    """

    cut: str

    def tiles(self, rows: int, columns: int) -> int:
        down, across = -(-self.M // rows), -(-self.N // columns)
        if self.cut == "k":
            return down * across * self.batch
        if self.cut == "m":
            return (self.M // rows + self.batch + 1) * across
        return down * (self.N // columns + self.batch + 1)
