"""The tile scheduler: which tiles, or steps of their K, are a program's, and in what order."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate
from .tile import raster, split_batch

#: Kernels are not specialised on these.
SIZES = ["M", "N", "K", "B0", "B1", *(f"stride_c{axis}" for axis in "01mn")]


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
    def share(self, part):
        """The first step of a part of K, and how many it has."""
        SHAPE: gl.constexpr = self.SHAPE
        first = 0
        steps = gl.cdiv(self.K, SHAPE.BLOCK_K)
        if SHAPE.SPLIT_K > 1:
            first = steps * part // SHAPE.SPLIT_K
            steps = steps * (part + 1) // SHAPE.SPLIT_K - first
            gl.assume(steps > 0)  # else ptxas may serialise WGMMA for the sake of sums without any
        return first, steps

    @gluon.jit
    def steps(self, i):
        """How many a unit has."""
        _, steps = self.share(i // self.tiles())
        return steps

    @gluon.jit
    def unit(self, i):
        """Unit `i` of the whole product."""
        tile, part = i, 0
        if self.SHAPE.SPLIT_K > 1:
            tile, part = i % self.tiles(), i // self.tiles()
        first, steps = self.share(part)
        b0, b1, row, col = self.place(tile)
        return Unit(tile, part, first, steps, b0, b1, row, col)

    @gluon.jit
    def unit_of_rank(self):
        """Of a program whose cluster has a tile to itself: a part for each rank."""
        rank = gl.program_id(0) % self.SHAPE.SPLIT_K
        tile = gl.program_id(0) // self.SHAPE.SPLIT_K
        first, steps = self.share(rank)
        b0, b1, row, col = self.place(tile)
        return Unit(tile, rank, first, steps, b0, b1, row, col)


@aggregate
class StreamK:
    """A program's `whole` tiles, and its share of the steps of those that would not fill a round.

    The share is the steps [begin, end), of all steps of the tiles that are shared out. It ends
    anywhere, so its first and last tile may have other programs too, at most `SPLIT_K`.
    """

    work: Scheduler
    whole: Value
    begin: Value
    end: Value

    @gluon.jit
    def first(self):
        """This program's first unit."""
        return 0

    @gluon.jit
    def units(self):
        """Of this program: tiles, and pieces of tiles."""
        steps = gl.cdiv(self.work.K, self.work.SHAPE.BLOCK_K)
        pieces = (self.end - 1) // steps - self.begin // steps + 1
        return self.whole + gl.where(self.end > self.begin, pieces, 0)

    @gluon.jit
    def stride(self):
        """From one of its units to the next."""
        return 1

    @gluon.jit
    def unit(self, i):
        """Unit `i` of this program."""
        steps = gl.cdiv(self.work.K, self.work.SHAPE.BLOCK_K)
        tile = self.begin // steps + i - self.whole
        first = gl.maximum(self.begin - tile * steps, 0)
        count = gl.minimum(self.end - tile * steps, steps) - first
        shared = i >= self.whole
        tile = gl.where(shared, self.whole * gl.num_programs(0) + tile,
                        gl.program_id(0) + i * gl.num_programs(0))  # fmt: skip
        first = gl.where(shared, first, 0)
        count = gl.where(shared, count, steps)
        b0, b1, row, col = self.work.place(tile)
        return Unit(tile, 0, first, count, b0, b1, row, col)

    @gluon.jit
    def is_whole(self, unit):
        """Whether the unit has all steps of its tile."""
        return unit.steps == gl.cdiv(self.work.K, self.work.SHAPE.BLOCK_K)

    @gluon.jit
    def sharers(self, unit):
        """The tile's place among the shared ones, its first program, and one behind the last."""
        steps = gl.cdiv(self.work.K, self.work.SHAPE.BLOCK_K)
        here = unit.tile - self.whole * gl.num_programs(0)
        rest = self.work.tiles() - self.whole * gl.num_programs(0)
        start = owner_of(here * steps, rest, steps, self.work.SHAPE.SPLIT_K)
        stop = owner_of((here + 1) * steps - 1, rest, steps, self.work.SHAPE.SPLIT_K) + 1
        return here, start, stop

    @gluon.jit
    def slot(self, program, here):
        """Where a program's sums of a shared tile stand: it begins in one and ends in another."""
        steps = gl.cdiv(self.work.K, self.work.SHAPE.BLOCK_K)
        rest = self.work.tiles() - self.whole * gl.num_programs(0)
        begin, _ = share_of(program, rest, steps, self.work.SHAPE.SPLIT_K)
        return gl.cast(2 * program + gl.where(begin < here * steps, 1, 0), gl.int64)


@gluon.jit
def stream_k(work):
    """The units of this program."""
    tiles = work.tiles()
    whole = tiles // gl.num_programs(0)
    begin, end = share_of(
        gl.program_id(0), tiles - whole * gl.num_programs(0), gl.cdiv(work.K, work.SHAPE.BLOCK_K),
        work.SHAPE.SPLIT_K,
    )  # fmt: skip
    return StreamK(work, whole, begin, end)


@gluon.jit
def share_of(program, tiles, steps, SPLIT_K: gl.constexpr):
    """The steps [begin, end) of one program, of all steps of the tiles that are shared out."""
    sharers = gl.minimum(gl.num_programs(0), tiles * SPLIT_K)
    share = tiles * steps // gl.maximum(sharers, 1)
    more = tiles * steps - share * sharers
    begin = gl.where(program < sharers, program * share + gl.minimum(program, more), 0)
    return begin, gl.where(program < sharers, begin + share + (program < more).to(gl.int32), 0)


@gluon.jit
def owner_of(step, tiles, steps, SPLIT_K: gl.constexpr):
    """The program in whose share a step lies."""
    sharers = gl.minimum(gl.num_programs(0), tiles * SPLIT_K)
    share = tiles * steps // sharers
    more = tiles * steps - share * sharers
    large = more * (share + 1)
    return gl.where(step < large, step // (share + 1), more + (step - large) // share)
