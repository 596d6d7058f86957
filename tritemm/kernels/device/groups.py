"""The tile scheduler of groups: products whose M, N or K a tensor on the device cuts.

`offs` holds where each group ends; the part after the last is one more group, the rest. Along M and
N a group's tiles begin where it begins. What a tile loads past its group's end only affects rows
or columns that are not stored: for TMA, C ends with the group, by a map of 2**30 lines, the last of
which is the group's (`arch.lines.Box.ragged`). The rest has nothing to multiply: its tiles are
loaded from beyond A and B, where TMA reads zeros, as are elements of K beyond a group. Groups of K
in fp8 are whole blocks of 128, as the caller promises; a group that isn't becomes NaN.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from .language import Value, aggregate
from .memory import in_blocks
from .raster import bounds, raster
from .scales import BLOCK
from .scheduler import Scheduler

#: Lines of a map that ends with a group; no matrix has as many.
LINES = gl.constexpr(2**30)


@gluon.jit
def add(x, y):
    return x + y


@aggregate
class GroupUnit:
    """A tile of group `b1`, or of the `rest`: where it begins in C, and the steps of its K.

    The group is from `begin` to `end` of the cut dimension.
    """

    first: Value
    steps: Value
    b0: Value
    b1: Value
    row: Value
    col: Value
    begin: Value
    end: Value
    rest: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def loaded_from(self):
        """Batch indices, row, column and k at which its loads begin."""
        b0, b1, row, col, k = self.b0, self.b1, self.row, self.col, 0
        if in_blocks(self.SHAPE):
            b1, k = 0, gl.where(self.begin < self.end, 0, LINES)
        elif self.SHAPE.GROUPS == "k":
            b0, b1, k = LINES, self.end, LINES - (self.end - self.begin)
        else:
            beyond = gl.where(self.rest, LINES, 0)
            row += beyond
            col += beyond
        return b0, b1, row, col, k

    @gluon.jit
    def stored_to(self, row, col):
        """Batch indices, row and column at which TMA stores the element (row, col) of C."""
        b0, b1 = self.b0, self.b1
        if self.SHAPE.GROUPS != "k":
            b0, b1 = LINES, self.end
        if self.SHAPE.GROUPS == "m":
            row += LINES - self.end
        elif self.SHAPE.GROUPS == "n":
            col += LINES - self.end
        return b0, b1, row, col

    @gluon.jit
    def limits(self, M, N):
        """The size of C, M x N, as if it ended with the group."""
        if self.SHAPE.GROUPS == "m":
            M = self.end
        elif self.SHAPE.GROUPS == "n":
            N = self.end
        return M, N

    @gluon.jit
    def finished(self, M, N):
        """The part of M x N that has a bias and scales: nothing of the rest."""
        return gl.where(self.rest, 0, M), gl.where(self.rest, 0, N)

    @gluon.jit
    def checked(self, acc):
        """Its accumulators: zeros without terms, NaN for a group that isn't whole blocks of K."""
        some, whole = self.begin < self.end, (self.begin | self.end) % BLOCK == 0
        done = ()
        for i in gl.static_range(len(acc)):
            done += (gl.where(some, acc[i] * gl.where(whole, 1.0, float("nan")), 0.0),)
        return done

    @gluon.jit
    def bias(self, bias_ptr, M, N):
        """The group's bias."""
        size = N * (1 + self.SHAPE.GATED) if self.SHAPE.BIAS == "n" else M
        return bias_ptr + self.b1.to(gl.int64) * size


@aggregate
class Groups:
    """The units of persistent programs, dealt out in turn; with the methods of a `Scheduler`.

    Along M or N, a band is a row of a group's tiles across the cut dimension; along K, all of its
    tiles. There are `bands` of them, the first `full` of which are not the rest's; each thread of
    a warp knows for some groups how many come `before` theirs.
    """

    dense: Value  # the `Scheduler` of all groups as if they were one
    offs_ptr: Value
    size: Value  # of what is cut
    across: Value  # tiles of a band
    before: Value
    full: Value
    bands: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def begun(self):
        """The scheduler, with tiles counted, once the previous launch has written the offsets."""
        gdc_wait()
        work = self
        if self.SHAPE.GROUPS != "k":
            SIDE: gl.constexpr = (
                self.SHAPE.BLOCK_M if self.SHAPE.GROUPS == "m" else self.SHAPE.BLOCK_N
            )
            MOST: gl.constexpr = self.SHAPE.MOST_GROUPS
            layout: gl.constexpr = gl.BlockedLayout([MOST // 32], [32], [gl.num_warps()], [0])
            group, count = gl.arange(0, MOST, layout), self.dense.B1
            begin, end = bounds(self.offs_ptr, group, count, self.size)
            bands = gl.where(group < count, gl.cdiv(end - begin, SIDE), 0)
            before = gl.associative_scan(bands, 0, add) - bands
            full = gl.sum(bands, 0)
            begin, end = bounds(self.offs_ptr, count, count, self.size)
            more = gl.cdiv(end - begin, SIDE)
            work = Groups(
                self.dense, self.offs_ptr, self.size, self.across, before, full, full + more,
                self.SHAPE,
            )  # fmt: skip
        return work

    @gluon.jit
    def first(self):
        return self.dense.first()

    @gluon.jit
    def stride(self):
        return self.dense.stride()

    @gluon.jit
    def units(self):
        return self.bands * self.across

    @gluon.jit
    def steps(self, i):
        if self.SHAPE.GROUPS == "k":
            group = gl.minimum(i // self.across, self.dense.B1 - 1)
            begin, end = bounds(self.offs_ptr, group, self.dense.B1, self.dense.K)
            steps = gl.maximum(gl.cdiv(end - begin, self.SHAPE.BLOCK_K), 1)
        else:
            rest = i >= self.full * self.across
            steps = gl.where(rest, 1, gl.cdiv(self.dense.K, self.SHAPE.BLOCK_K))
        gl.assume(steps > 0)  # as `Scheduler.share` has it
        return steps

    @gluon.jit
    def unit(self, i):
        SHAPE: gl.constexpr = self.SHAPE
        M, N, count = self.dense.M, self.dense.N, self.dense.B1
        if SHAPE.GROUPS == "k":
            group = i // self.across
            inside = i % self.across
        else:
            band = i // self.across
            started = self.before <= band
            group = gl.minimum(gl.sum(started.to(gl.int32), 0), count) - 1
            first = gl.max(gl.where(started, self.before, 0), 0)
            group = gl.where(band >= self.full, count, group)
            inside = i - gl.where(band >= self.full, self.full, first) * self.across
        begin, end = bounds(self.offs_ptr, group, count, self.size)
        row = gl.to_tensor(0)
        col = gl.to_tensor(0)
        if SHAPE.GROUPS == "m":
            M = end - begin
            row = begin
        elif SHAPE.GROUPS == "n":
            N = end - begin
            col = begin
        pid_m, pid_n = raster(
            inside, M, N, SHAPE.BLOCK_M, SHAPE.BLOCK_N, SHAPE.ORDER, SHAPE.GROUP_M
        )
        row += pid_m * SHAPE.BLOCK_M
        col += pid_n * SHAPE.BLOCK_N
        zero, rest = gl.to_tensor(0), group == count
        skipped = zero
        if in_blocks(SHAPE):  # steps of all K that come before the group's
            skipped = gl.where(begin < end, begin // SHAPE.BLOCK_K, 0)
        return GroupUnit(skipped, self.steps(i), zero, group, row, col, begin, end, rest, SHAPE)


@gluon.jit
def make_scheduler(M, N, K, B0, B1, offs_ptr, SHAPE: gl.constexpr):
    """The scheduler of a dense product, or of groups."""
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    if SHAPE.GROUPS != "":
        if SHAPE.GROUPS == "m":
            size, across = M, gl.cdiv(N, SHAPE.BLOCK_N)
        elif SHAPE.GROUPS == "n":
            size, across = N, gl.cdiv(M, SHAPE.BLOCK_M)
        else:
            size, across = K, work.tiles() // B1
        work = Groups(work, offs_ptr, size, across, gl.to_tensor(0), B1, B1, SHAPE)
    return work
