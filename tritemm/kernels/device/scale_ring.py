"""The ring of scales: a step's stand beside its tiles, where the producer's threads copy them.

A consumer that loaded them itself would wait for memory, or hold those of the next step in
registers that it hasn't got.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate, cp_async
from .offsets import widen
from .scales import scale_ptrs

#: Scales of a piece of the ring.
PIECE = gl.constexpr(128)


@gluon.constexpr_function
def pieces_of(rows, columns, b_lines):
    """Pieces of a stage: for A's rows, then for B's columns, or for those that share a scale."""
    return -(-rows // PIECE.value), -(-columns // PIECE.value) if b_lines == 1 else 1


@gluon.constexpr_function
def pieces(shape):
    """The same of a tile's shape."""
    return pieces_of(shape.BLOCK_M.value, shape.BLOCK_N.value, shape.B_LINES.value)


@aggregate
class ScaleRing:
    """The scales of M rows of A and N columns of B in shared memory; `args` are `EpilogueArgs`."""

    memory: Value
    args: Value
    M: Value
    N: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def load(self, unit, step, stage, WIDTH: gl.constexpr):
        """Begin to copy the scales of a step; columns are those of tensors `WIDTH` wide."""
        SHAPE: gl.constexpr = self.SHAPE
        ROWS: gl.constexpr = pieces(SHAPE)[0]
        COLUMNS: gl.constexpr = pieces(SHAPE)[1]
        STEP: gl.constexpr = 1 if SHAPE.B_LINES == 1 else WIDTH
        args = self.args
        M, N = unit.finished(self.M, self.N)
        at = stage * (ROWS + COLUMNS)
        step += unit.first
        each = gl.arange(0, PIECE, gl.BlockedLayout([1], [32], [1], [0]))
        for i in gl.static_range(ROWS):
            rows = unit.row + i * PIECE + each
            at_m = widen(rows, SHAPE.WIDE)
            ptrs = scale_ptrs(args.scale_a_ptr, args.sa_strides, unit.b1, at_m, step, SHAPE.A_LINES)
            cp_async(self.memory.index(at + i), ptrs, mask=rows < M)
        for i in gl.static_range(COLUMNS):
            columns = unit.col + (i * PIECE + each) * STEP
            at_n = widen(columns, SHAPE.WIDE)
            ptrs = scale_ptrs(args.scale_b_ptr, args.sb_strides, unit.b1, at_n, step, SHAPE.B_LINES)
            inside = (columns < N) & (i * PIECE + each < SHAPE.BLOCK_N // STEP)
            cp_async(self.memory.index(at + ROWS + i), ptrs, mask=inside)

    @gluon.jit
    def factors(self, acc, stage, SLAB: gl.constexpr):
        """What the rows of a slab's tensors `acc` are multiplied with: their scales, and those of
        the columns if they share one."""
        SHAPE: gl.constexpr = self.SHAPE
        TWO: gl.constexpr = PIECE // SHAPE.ROWS
        layout: gl.constexpr = gl.SliceLayout(1, acc[0].type.layout)
        at = stage * sum_of(SHAPE)
        piece = self.memory.index(at + SLAB // TWO).slice(SLAB % TWO * SHAPE.ROWS, SHAPE.ROWS)
        rows = piece.load(layout)
        found = ()
        for i in gl.static_range(len(acc)):
            factor = rows
            if SHAPE.B_LINES != 1:
                factor *= self.memory.index(at + pieces(SHAPE)[0]).slice(i, 1).load(layout)
            found += (factor[:, None],)
        return found

    @gluon.jit
    def of_columns(self, acc, stage, NTH: gl.constexpr):
        """The scales of the columns of the slab's tensor number `NTH`, of equal ones."""
        SHAPE: gl.constexpr = self.SHAPE
        WIDTH: gl.constexpr = acc.shape[1]
        at = stage * sum_of(SHAPE) + pieces(SHAPE)[0] + NTH * WIDTH // PIECE
        columns = self.memory.index(at).slice(NTH * WIDTH % PIECE, WIDTH)
        return columns.load(gl.SliceLayout(0, acc.type.layout))


@gluon.constexpr_function
def sum_of(shape):
    """Pieces of a stage."""
    return sum(pieces(shape))


@gluon.jit
def make_scale_ring(args, M, N, SHAPE: gl.constexpr):
    """The ring with its memory, of a problem with scales of blocks; else nothing of use."""
    ring = M
    if SHAPE.SUMS == "block":
        COUNT: gl.constexpr = SHAPE.STAGES * sum_of(SHAPE)
        layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        memory = gl.allocate_shared_memory(gl.float32, [COUNT, PIECE], layout)
        ring = ScaleRing(memory, args, M, N, SHAPE)
    return ring
