"""The ring of scales: a step's scales are next to its tiles; the producer's threads copy them.

A consumer that loaded them itself would wait for memory, or hold those of the next step in
registers that it doesn't have.
"""

import math

from triton import next_power_of_2
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate, cp_async
from .memory import acc_columns
from .offsets import widen
from .scales import scale_ptrs


@gluon.constexpr_function
def together(columns, b_lines):
    """Columns of a tile, which begins at a multiple of `columns`, that share a scale."""
    return math.gcd(columns, b_lines)


@gluon.constexpr_function
def sizes_of(rows, columns, b_lines):
    """Scales of A and of B that a stage has room for."""
    return next_power_of_2(rows), next_power_of_2(columns // together(columns, b_lines))


@gluon.constexpr_function
def layout_of(columns, count):
    """The layout in which a thread's columns, 2 of each 8, are 4 neighbours if a tensor has 16."""
    if columns % 16 or count < 16:
        return gl.SwizzledSharedLayout(1, 1, 1, [0])
    bits = [1 << i for i in range(count.bit_length() - 1)]
    bits[1:4] = bits[3:4] + bits[1:3]
    return gl.SharedLinearLayout([[bit] for bit in bits])


@aggregate
class ScaleRing:
    """The scales of M rows of A and N columns of B in shared memory; `args` are `EpilogueArgs`."""

    a: Value  # [STAGES, rows]
    b: Value  # [STAGES, columns], or those that share no scale
    args: Value
    M: Value
    N: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def load(self, unit, step, stage):
        """Issue the copy of a step's scales."""
        SHAPE: gl.constexpr = self.SHAPE
        args, step = self.args, step + unit.first
        M, N = unit.finished(self.M, self.N)
        copy_scales(
            self.a.index(stage), args.scale_a_ptr, args.sa_strides, unit.b1, unit.row, M, step,
            SHAPE.BLOCK_M, 1, SHAPE.A_LINES, SHAPE.WIDE,
        )  # fmt: skip
        copy_scales(
            self.b.index(stage), args.scale_b_ptr, args.sb_strides, unit.b1, unit.col, N, step,
            SHAPE.BLOCK_N, together(SHAPE.BLOCK_N, SHAPE.B_LINES), SHAPE.B_LINES, SHAPE.WIDE,
        )  # fmt: skip

    @gluon.jit
    def factors(self, acc, stage, SLAB: gl.constexpr):
        """The factors of the rows of a slab's tensors `acc`: their scales, and those of the
        columns if they share one."""
        SHAPE: gl.constexpr = self.SHAPE
        SHARED: gl.constexpr = together(SHAPE.BLOCK_N, SHAPE.B_LINES)
        layout: gl.constexpr = gl.SliceLayout(1, acc[0].type.layout)
        rows = self.a.index(stage).slice(SLAB * SHAPE.ROWS, SHAPE.ROWS).load(layout)
        found = ()
        for i in gl.static_range(len(acc)):
            if acc_columns(acc[:i]) % SHARED == 0:
                factor = rows
                if SHAPE.B_LINES != 1:
                    nth = self.b.index(stage).slice(acc_columns(acc[:i]) // SHARED, 1)
                    factor *= nth.load(layout)
            found += (factor[:, None],)
        return found

    @gluon.jit
    def of_columns(self, acc, stage, NTH: gl.constexpr):
        """The scales of the columns of tensor number `NTH` of a slab."""
        columns = self.b.index(stage).slice(acc_columns(acc[:NTH]), acc[NTH].shape[1])
        return columns.load(gl.SliceLayout(0, acc[NTH].type.layout))


@gluon.jit
def copy_scales(to, ptr, strides, b1, first, end, step, COUNT: gl.constexpr, EACH: gl.constexpr,
                LINES: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Issue the copy of a step's scales of `COUNT` lines from `first` on, one for `EACH` lines."""
    nth = EACH * gl.arange(0, to.shape[0], gl.BlockedLayout([1], [32], [1], [0]))
    lines = first + nth
    ptrs = scale_ptrs(ptr, strides, b1, widen(lines, WIDE), step, LINES)
    cp_async(to, ptrs, mask=(lines < end) & (nth < COUNT))


@gluon.jit
def make_scale_ring(args, M, N, SHAPE: gl.constexpr):
    """The ring with its memory, if scales are of blocks; else an unused placeholder."""
    ring = M
    if SHAPE.SUMS == "block":
        SIZES: gl.constexpr = sizes_of(SHAPE.BLOCK_M, SHAPE.BLOCK_N, SHAPE.B_LINES)
        rows: gl.constexpr = layout_of(1, SIZES[0])
        columns: gl.constexpr = layout_of(SHAPE.BLOCK_N, SIZES[1])
        a = gl.allocate_shared_memory(gl.float32, [SHAPE.STAGES, SIZES[0]], rows)
        b = gl.allocate_shared_memory(gl.float32, [SHAPE.STAGES, SIZES[1]], columns)
        ring = ScaleRing(a, b, args, M, N, SHAPE)
    return ring
