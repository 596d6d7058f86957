"""The epilogue of a piece of the accumulator, in Gluon: a subtile of a few columns at a time.

With swiglu and geglu a piece is a pair: the gate's columns, and those of the factor it multiplies.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .epilogue_ops import EpilogueArgs, combine, load_operands
from .memory import acc_columns, cut, joined
from .offsets import widen
from .scales import a_scale

#: Columns of a subtile, of both halves of a pair together.
COLUMNS = gl.constexpr(16)
#: Subtiles whose loads are in flight while one is computed, where a thread has at most `ROOMY`
#: elements of the accumulator.
MOST_AHEAD = gl.constexpr(3)
ROOMY = gl.constexpr(128)


@gluon.jit
def finish_piece(piece, args, unit, row, col, M, N, DTYPE: gl.constexpr, SHAPE: gl.constexpr):
    """The elements of C, of type DTYPE, of a piece from `pieces_of` that is at (row, col) of C.

    `args` are `EpilogueArgs`; C is M x N.
    """
    if SHAPE.SUMS == "block":  # which the accumulator has been multiplied by
        args = EpilogueArgs(args.bias_ptr, args.residual_ptr, args.alpha, args.beta, args.strides)
    # Subtiles need few registers each.
    SUBTILES: gl.constexpr = 1 if SHAPE.PLAIN else max(1, acc_columns(piece) // COLUMNS)
    EACH: gl.constexpr = piece[0].shape[1] // SUBTILES
    IS_ROOMY: gl.constexpr = ROOMY * 32 * SHAPE.WARPS >= SHAPE.ROWS * SHAPE.BLOCK_N
    AHEAD: gl.constexpr = MOST_AHEAD if IS_ROOMY and not SHAPE.PLAIN else 0
    first, last = cut(piece[0], EACH), cut(piece[len(piece) - 1], EACH)
    scales = row_scales(first[0], args, unit, row, M, N, SHAPE)
    loaded = ()
    done = ()
    for i in gl.static_range(SUBTILES + AHEAD):
        if i < SUBTILES:
            loaded += (load_at(first[i], args, scales, unit, row, col + i * EACH, M, N, SHAPE),)
        if i >= AHEAD:
            up = last[i - AHEAD] if SHAPE.GATED else None
            acc = combine(first[i - AHEAD], args, loaded[i - AHEAD], SHAPE.ACTIVATION, up)
            done += (acc.to(DTYPE),)
    return joined(done)


@gluon.jit
def row_scales(acc, args, unit, row, M, N, SHAPE: gl.constexpr):
    """The scales of the rows of A, which all subtiles of a piece share; None without scales."""
    scales = None
    if args.scale_a_ptr is not None:
        offs_m = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))
        M = unit.finished(M, N)[0] if SHAPE.GROUPS != "" else M
        scales = a_scale(args, unit.b1, widen(offs_m, SHAPE.WIDE), M, 0, SHAPE.A_LINES)
    return scales


@gluon.jit
def load_at(acc, args, scales, unit, row, col, M, N, SHAPE: gl.constexpr):
    """`load_operands` for the subtile `acc` at (row, col)."""
    layout: gl.constexpr = acc.type.layout
    offs_m = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    offs_m, offs_n = widen(offs_m, SHAPE.WIDE), widen(offs_n, SHAPE.WIDE)
    if SHAPE.GROUPS != "":
        bias_ptr = args.bias_ptr
        if bias_ptr is not None:
            bias_ptr = unit.bias(bias_ptr, M, N)
        M, N = unit.finished(M, N)
        args = EpilogueArgs(
            bias_ptr, None, args.alpha, None, None,
            args.scale_a_ptr, args.scale_b_ptr, args.sa_strides, args.sb_strides,
        )  # fmt: skip
    return load_operands(
        args, unit.b0, unit.b1, offs_m, offs_n, M, N, SHAPE.BIAS, SHAPE.LINES, SHAPE.GATED,
        SHAPE.A_LINES, SHAPE.B_LINES, scales,
    )  # fmt: skip


@gluon.jit
def pieces_of(acc, SHAPE: gl.constexpr):
    """The pieces of the tensors `acc`, for EPI_N columns of C each: tuples of factors.

    With swiglu and geglu the gate is the left half of each tensor; else there is one factor.
    """
    pieces = ()
    for i in gl.static_range(len(acc)):
        factors = cut(acc[i], acc[i].shape[1] // (1 + SHAPE.GATED))
        first = cut(factors[0], SHAPE.EPI_N)
        last = cut(factors[len(factors) - 1], SHAPE.EPI_N)
        for j in gl.static_range(len(first)):
            pieces += ((first[j], last[j]) if SHAPE.GATED else (first[j],),)
    return pieces
