"""The stream-K scheduler: equal shares of the steps of the tiles that don't fill a wave."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate
from .memory import acc_columns
from .scheduler import Scheduler, Unit
from .split_k import arrive_last, piece_offsets, store_partials


@aggregate
class StreamK:
    """A program's `whole` tiles, and its share of the steps of the tiles that don't fill a wave.

    The share is the steps [begin, end) of all steps of the tiles that are shared out. It ends
    anywhere, so other programs may share its first and its last tile, at most `SPLIT_K` each.
    """

    work: Scheduler
    steps: Value  # of a tile
    rest: Value  # tiles that are shared out
    whole: Value
    begin: Value
    end: Value

    @gluon.jit
    def units(self):
        """Number of this program's units: tiles, and ranges of a tile's steps."""
        ranges = (self.end - 1) // self.steps - self.begin // self.steps + 1
        return self.whole + gl.where(self.end > self.begin, ranges, 0)

    @gluon.jit
    def unit(self, i):
        """Unit `i` of this program."""
        tile = self.begin // self.steps + i - self.whole
        first = gl.maximum(self.begin - tile * self.steps, 0)
        count = gl.minimum(self.end - tile * self.steps, self.steps) - first
        shared = i >= self.whole
        tile = gl.where(shared, self.whole * gl.num_programs(0) + tile,
                        gl.program_id(0) + i * gl.num_programs(0))  # fmt: skip
        first = gl.where(shared, first, 0)
        count = gl.where(shared, count, self.steps)
        b0, b1, row, col = self.work.place(tile)
        return Unit(tile, 0, first, count, b0, b1, row, col)

    @gluon.jit
    def slot(self, program, here):
        """The slot of a program's partial sums: one for the tile it begins in, one for the last."""
        begin, _ = share_of(program, self.rest, self.steps, self.work.SHAPE.SPLIT_K)
        return gl.cast(2 * program + gl.where(begin < here * self.steps, 1, 0), gl.int64)

    @gluon.jit
    def reduce(self, workspace, acc, out, unit):
        """Store the partial sums of a shared tile; the last of its programs adds and stores it."""
        SHAPE: gl.constexpr = self.work.SHAPE
        ROWS: gl.constexpr = SHAPE.ROWS
        EPI_N: gl.constexpr = SHAPE.EPI_N
        SIZE: gl.constexpr = ROWS * acc_columns(acc)
        partials = workspace.partials_ptr
        here = unit.tile - self.whole * gl.num_programs(0)  # among the shared ones
        start = owner_of(here * self.steps, self.rest, self.steps, SHAPE.SPLIT_K)
        stop = owner_of((here + 1) * self.steps - 1, self.rest, self.steps, SHAPE.SPLIT_K) + 1
        store_partials(partials + self.slot(gl.program_id(0), here) * SIZE, acc, SHAPE)
        if arrive_last(workspace.counters_ptr + here, stop - start):
            for i in gl.static_range(acc_columns(acc) // EPI_N):
                piece = add_shares(partials, self, here, start, stop, i, SIZE, ROWS, EPI_N)
                out.store_pieces(((piece,),), unit, 0, i * EPI_N, 0)


@gluon.jit
def stream_k(work):
    """The units of this program."""
    steps = gl.cdiv(work.K, work.SHAPE.BLOCK_K)
    tiles = work.tiles()
    whole = tiles // gl.num_programs(0)
    rest = tiles - whole * gl.num_programs(0)
    begin, end = share_of(gl.program_id(0), rest, steps, work.SHAPE.SPLIT_K)
    return StreamK(work, steps, rest, whole, begin, end)


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
    """The program whose share contains a step."""
    sharers = gl.minimum(gl.num_programs(0), tiles * SPLIT_K)
    share = tiles * steps // sharers
    more = tiles * steps - share * sharers
    large = more * (share + 1)
    return gl.where(step < large, step // (share + 1), more + (step - large) // share)


@gluon.jit
def add_shares(partials_ptr, work, here, start, stop, piece, SIZE: gl.constexpr,
               BLOCK_M: gl.constexpr, EPI_N: gl.constexpr):  # fmt: skip
    """A piece summed over the programs [start, stop) that share a tile, in their order."""
    where = piece_offsets(piece, BLOCK_M, EPI_N)
    total = gl.load(partials_ptr + work.slot(start, here) * SIZE + where, cache_modifier=".cg")
    # Programs after the first began inside the tile: its first slot. Four at a time, so that their
    # loads are in flight together.
    for other in range(start + 1, stop, 4):
        for j in gl.static_range(4):
            partials = partials_ptr + gl.cast(2 * (other + j), gl.int64) * SIZE
            inside = (where >= 0) & (other + j < stop)
            total += gl.load(partials + where, mask=inside, other=0.0, cache_modifier=".cg")
    return total
