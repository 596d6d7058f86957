"""The tiles that cover a product: the only place on the host that counts them."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class TileSpace:
    """The tiles of a dense product: each of its matrices, M x N, is covered separately.

    Grids, waves, workspace, limits and the cost model use it (`Config.tiles`, `Problem.space`), as
    kernels use `Scheduler.tiles`. Another space, of a triangle or of groups, is another class with
    these methods.
    """

    M: int
    N: int
    batch: int

    @property
    def elements(self) -> int:
        """Elements of the product; there can't be more tiles."""
        return self.tiles(1, 1)

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of this many rows and columns."""
        return -(-self.M // rows) * -(-self.N // columns) * self.batch

    def bands(self, rows: int) -> int:
        """Rows of such tiles."""
        return self.tiles(rows, self.N)


class Triangle(TileSpace):
    """The tiles with elements on or below the diagonal of C, N x N, in whole squares of tiles.

    A square's side is the least common multiple of the tile's two sides.
    """

    def tiles(self, rows: int, columns: int) -> int:
        side = math.lcm(rows, columns)
        squares = -(-self.N // side)
        return squares * (squares + 1) // 2 * (side // rows) * (side // columns) * self.batch


@dataclasses.dataclass(frozen=True)
class Grouped(TileSpace):
    """The tiles of `batch` groups that a tensor on the device cuts M, N or K into (m, n, k).

    No tile spans two groups; the rest of M or N after the last group counts as one more. The host
    can't know the number of tiles: these methods give the most.
    """

    cut: str

    def tiles(self, rows: int, columns: int) -> int:
        down, across = -(-self.M // rows), -(-self.N // columns)
        if self.cut == "k":
            return down * across * self.batch
        if self.cut == "m":
            return (self.M // rows + self.batch + 1) * across
        return down * (self.N // columns + self.batch + 1)
