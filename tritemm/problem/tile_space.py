"""The tiles that cover a product: the one place on the host that counts them."""

from __future__ import annotations

import dataclasses


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
        return self.M * self.N * self.batch

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of so many rows and columns."""
        return self.bands(rows) * -(-self.N // columns)

    def bands(self, rows: int) -> int:
        """Rows of such tiles."""
        return -(-self.M // rows) * self.batch
