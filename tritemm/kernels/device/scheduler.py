"""The tile scheduler: which tiles, or steps of their K, are a program's, and in what order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate
from .raster import raster, split_batch

#: Kernels are not specialised on these.
SIZES = ["M", "N", "K", "B0", "B1", *(f"stride_c{axis}" for axis in "01mn")]

#: Elements of K at whose multiples fixed `PARTS` begin: each BLOCK_K divides them.
CUT = gl.constexpr(256)


@aggregate
class Unit:
    """Some steps of K of a tile: of all `part`s of its K, if it is cut, one.

    (b0, b1, row, col): where this program's tile begins.
    """

    tile: Value
    part: Value
    first: Value
    steps: Value
    b0: Value
    b1: Value
    row: Value
    col: Value


@gluon.constexpr_function
def cluster_tile(cluster, shared, rows, columns):
    """Rows and columns of what a cluster computes at once."""
    return (cluster * rows, columns) if shared == "b" else (rows, cluster * columns)


@gluon.constexpr_function
def tile_of(shape):
    """The same, of a program where there are no clusters."""
    return cluster_tile(shape.CLUSTER, shape.SHARED, shape.BLOCK_M, shape.BLOCK_N)


@gluon.constexpr_function
def group_of(shape):
    """Tiles in a group; of clusters as many as are as high as GROUP_M tiles of 128 rows."""
    return shape.GROUP_M if shape.CLUSTER == 1 else max(1, 128 * shape.GROUP_M // tile_of(shape)[0])


@aggregate
class Scheduler:
    """A persistent program, or cluster of programs, takes every so many-th unit of work.

    Units are tiles, in the raster `ORDER`, or parts of their K: all tiles' first parts come first.
    """

    M: Value
    N: Value
    K: Value
    B0: Value
    B1: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def tiles(self):
        """Of the whole product; of clusters."""
        TILE: gl.constexpr = tile_of(self.SHAPE)
        return gl.cdiv(self.M, TILE[0]) * gl.cdiv(self.N, TILE[1]) * self.B0 * self.B1

    @gluon.jit
    def units(self):
        """Of the whole product: one behind the last."""
        return self.tiles() * self.SHAPE.SPLIT_K

    @gluon.jit
    def first(self):
        """This program's first unit."""
        return gl.program_id(0) // self.SHAPE.CLUSTER

    @gluon.jit
    def stride(self):
        """From one of its units to the next."""
        return gl.num_programs(0) // self.SHAPE.CLUSTER

    @gluon.jit
    def rank(self):
        """The program's place in its cluster."""
        return gl.program_id(0) % self.SHAPE.CLUSTER

    @gluon.jit
    def place(self, tile):
        """Batch indices, first row and first column of this program's part of a tile."""
        SHAPE: gl.constexpr = self.SHAPE
        TILE: gl.constexpr = tile_of(SHAPE)
        GROUP: gl.constexpr = group_of(SHAPE)
        pid, b0, b1 = split_batch(tile, self.M, self.N, self.B1, TILE[0], TILE[1], SHAPE.BATCHED)
        pid_m, pid_n = raster(pid, self.M, self.N, TILE[0], TILE[1], SHAPE.ORDER, GROUP)
        row = pid_m * TILE[0]
        col = pid_n * TILE[1]
        if SHAPE.CLUSTER > 1 and SHAPE.SHARED == "b":
            row += self.rank() * SHAPE.BLOCK_M
        elif SHAPE.CLUSTER > 1:
            col += self.rank() * SHAPE.BLOCK_N
        return b0, b1, row, col

    @gluon.jit
    def share(self, part, PARTS: gl.constexpr):
        """The first step of one of so many parts of K, and how many it has."""
        BLOCK_K: gl.constexpr = self.SHAPE.BLOCK_K
        EACH: gl.constexpr = CUT // BLOCK_K if self.SHAPE.PARTS > 1 else 1
        pieces = gl.cdiv(self.K, EACH * BLOCK_K)
        first = pieces * part // PARTS * EACH
        steps = pieces * (part + 1) // PARTS * EACH - first
        if PARTS > 1:
            gl.assume(steps > 0)  # else ptxas may serialise WGMMA for the sake of sums without any
        return first, steps

    @gluon.jit
    def steps(self, i):
        """How many a unit has."""
        return self.share(i // self.tiles(), self.SHAPE.SPLIT_K)[1]

    @gluon.jit
    def unit(self, i):
        """Unit `i` of the whole product."""
        tile, part = i, 0
        if self.SHAPE.SPLIT_K > 1:
            tile, part = i % self.tiles(), i // self.tiles()
        first, steps = self.share(part, self.SHAPE.SPLIT_K)
        b0, b1, row, col = self.place(tile)
        return Unit(tile, part, first, steps, b0, b1, row, col)

    @gluon.jit
    def unit_of_rank(self):
        """Of a program whose cluster has a tile to itself: a part for each rank."""
        rank = gl.program_id(0) % self.SHAPE.SPLIT_K
        tile = gl.program_id(0) // self.SHAPE.SPLIT_K
        first, steps = self.share(rank, self.SHAPE.SPLIT_K)
        b0, b1, row, col = self.place(tile)
        return Unit(tile, rank, first, steps, b0, b1, row, col)
