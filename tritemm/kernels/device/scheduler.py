"""The tile scheduler: the units of work of a program, and their order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate
from .raster import raster, split_batch, tiles_of, triangular

#: Kernels are not specialised on these.
SIZES = ["M", "N", "K", "B0", "B1", *(f"stride_c{axis}" for axis in "01mn")]
SIZES += [f"stride_s{operand}{axis}" for operand in "ab" for axis in "1k"]

#: Fixed chunks of K (`PARTS`) begin at multiples of this many elements; each BLOCK_K divides it.
CUT = gl.constexpr(256)


@aggregate
class Unit:
    """A tile, or the steps of its K that program `split` of SPLIT_K computes.

    (b0, b1, row, col): where this program's tile begins.
    """

    tile: Value
    split: Value
    first: Value
    steps: Value
    b0: Value
    b1: Value
    row: Value
    col: Value

    @gluon.jit
    def finished(self, M, N):
        """The part of M x N that has a bias and scales."""
        return M, N


@gluon.constexpr_function
def cluster_tile(cluster, shared, rows, columns):
    """Rows and columns of a cluster's tile: those of its programs side by side."""
    return (cluster * rows, columns) if shared == "b" else (rows, cluster * columns)


@gluon.constexpr_function
def tile_of(shape):
    """Rows and columns of a cluster's tile, or a program's if there are no clusters."""
    return cluster_tile(shape.CLUSTER, shape.SHARED, shape.BLOCK_M, shape.BLOCK_N)


@aggregate
class Scheduler:
    """The units of persistent programs, or clusters of them, dealt out in turn.

    Units are tiles in the raster `ORDER`. With SPLIT_K, a tile is SPLIT_K units: the first of every
    tile come first.
    """

    M: Value
    N: Value
    K: Value
    B0: Value
    B1: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def tiles(self):
        """Number of tiles of the whole product, batches included; of clusters' tiles."""
        TILE: gl.constexpr = tile_of(self.SHAPE)
        tiles = tiles_of(self.M, self.N, TILE[0], TILE[1], self.SHAPE.TRIANGULAR)
        return tiles * self.B0 * self.B1

    @gluon.jit
    def units(self):
        """Number of work units (tiles x SPLIT_K)."""
        return self.tiles() * self.SHAPE.SPLIT_K

    @gluon.jit
    def first(self):
        """This program's first unit."""
        return gl.program_id(0) // self.SHAPE.CLUSTER

    @gluon.jit
    def stride(self):
        """Distance from one of a program's units to the next."""
        return gl.num_programs(0) // self.SHAPE.CLUSTER

    @gluon.jit
    def rank(self):
        """The program's rank in its cluster."""
        return gl.program_id(0) % self.SHAPE.CLUSTER

    @gluon.jit
    def place(self, tile):
        """Batch indices, first row and first column of this program's share of `tile`."""
        SHAPE: gl.constexpr = self.SHAPE
        TILE: gl.constexpr = tile_of(SHAPE)
        # With clusters, a group is as high as GROUP_M tiles of 128 rows.
        HIGH: gl.constexpr = SHAPE.GROUP_M if SHAPE.CLUSTER == 1 else 128 * SHAPE.GROUP_M // TILE[0]
        GROUP: gl.constexpr = max(1, HIGH)
        M, N, B1 = self.M, self.N, self.B1
        pid, b0, b1 = split_batch(tile, M, N, B1, TILE[0], TILE[1], SHAPE.BATCHED, SHAPE.TRIANGULAR)
        if SHAPE.TRIANGULAR:
            pid_m, pid_n = triangular(pid, N, TILE[0], TILE[1], SHAPE.ORDER, GROUP)
        else:
            pid_m, pid_n = raster(pid, M, N, TILE[0], TILE[1], SHAPE.ORDER, GROUP)
        row = pid_m * TILE[0]
        col = pid_n * TILE[1]
        if SHAPE.CLUSTER > 1 and SHAPE.SHARED == "b":
            row += self.rank() * SHAPE.BLOCK_M
        elif SHAPE.CLUSTER > 1:
            col += self.rank() * SHAPE.BLOCK_N
        return b0, b1, row, col

    @gluon.jit
    def share(self, index, COUNT: gl.constexpr):
        """Range `index` of `COUNT` that K is cut into: its first step, and the number of steps."""
        BLOCK_K: gl.constexpr = self.SHAPE.BLOCK_K
        EACH: gl.constexpr = CUT // BLOCK_K if self.SHAPE.PARTS > 1 else 1
        cuts = gl.cdiv(self.K, EACH * BLOCK_K)
        first = cuts * index // COUNT * EACH
        steps = cuts * (index + 1) // COUNT * EACH - first
        if COUNT > 1:
            gl.assume(steps > 0)  # else ptxas may serialise WGMMA, in case there is no step
        return first, steps

    @gluon.jit
    def steps(self, i):
        """Number of steps of unit `i`."""
        return self.share(i // self.tiles(), self.SHAPE.SPLIT_K)[1]

    @gluon.jit
    def unit(self, i):
        """Unit `i` of the whole product."""
        tile, split = i, 0
        if self.SHAPE.SPLIT_K > 1:
            tile, split = i % self.tiles(), i // self.tiles()
        first, steps = self.share(split, self.SHAPE.SPLIT_K)
        b0, b1, row, col = self.place(tile)
        return Unit(tile, split, first, steps, b0, b1, row, col)
