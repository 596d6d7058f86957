"""The epilogue of a piece of the accumulator, in Gluon: a subtile of a few columns at a time.

Of swiglu and geglu a piece is a pair: the gate's columns, and those of the factor it multiplies.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .epilogue_ops import combine, combine_pair, load_operands
from .memory import acc_columns, columns_of, split_columns
from .offsets import widen

#: Columns of a subtile, of both halves of a pair together.
COLUMNS = gl.constexpr(16)
#: Subtiles whose loads are in flight while one is computed, where a thread has at most `ROOMY`
#: elements of the accumulator.
AHEAD = gl.constexpr(3)
ROOMY = gl.constexpr(128)


@gluon.constexpr_function
def subtiles_of(columns, shape):
    """Subtiles of a piece: one if it is `PLAIN`, else as many as need few registers each."""
    return 1 if shape.PLAIN else max(1, columns // COLUMNS.value)


@gluon.constexpr_function
def loads_ahead(shape):
    """Subtiles whose loads are in flight while one is computed; 0 where registers are short."""
    roomy = ROOMY.value * 32 * shape.WARPS >= shape.ROWS * shape.BLOCK_N
    return AHEAD.value if roomy and not shape.PLAIN else 0


@gluon.jit
def finish_piece(piece, args, unit, row, col, M, N, DTYPE: gl.constexpr, SHAPE: gl.constexpr):
    """The elements of C, of type DTYPE, of a piece from `piece_of` that is at (row, col) of C.

    `args` are `EpilogueArgs`; C is M x N.
    """
    halves = (piece,)
    if SHAPE.GATED:
        halves = piece
    SUBTILES: gl.constexpr = subtiles_of(acc_columns(halves), SHAPE)
    EACH: gl.constexpr = halves[0].shape[1] // SUBTILES
    AHEAD: gl.constexpr = loads_ahead(SHAPE)
    loaded = ()
    done = ()
    for i in gl.static_range(SUBTILES + AHEAD):
        if i < SUBTILES:
            acc = split_columns(halves[0], i, SUBTILES)
            loaded += (load_at(acc, args, unit, row, col + i * EACH, M, N, SHAPE),)
        if i >= AHEAD:
            acc = split_columns(halves[0], i - AHEAD, SUBTILES)
            if SHAPE.GATED:
                up = split_columns(halves[1], i - AHEAD, SUBTILES)
                acc = combine_pair(acc, up, args, loaded[i - AHEAD], SHAPE.ACTIVATION)
            else:
                acc = combine(acc, args, loaded[i - AHEAD], SHAPE.ACTIVATION)
            done += (acc.to(DTYPE),)
    return joined(done)


@gluon.jit
def load_at(acc, args, unit, row, col, M, N, SHAPE: gl.constexpr):
    """`load_operands` for the subtile `acc` at (row, col)."""
    layout: gl.constexpr = acc.type.layout
    offs_m = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    offs_m, offs_n = widen(offs_m, SHAPE.WIDE), widen(offs_n, SHAPE.WIDE)
    return load_operands(
        args, unit.b0, unit.b1, offs_m, offs_n, M, N, SHAPE.BIAS, SHAPE.LINES, SHAPE.GATED
    )


@gluon.jit
def joined(tiles):
    """Tensors side by side as one, whose number is a power of two; registers only."""
    COUNT: gl.constexpr = len(tiles)
    if COUNT == 1:
        whole = tiles[0]
    else:
        whole = gl.join(joined(tiles[: COUNT // 2]), joined(tiles[COUNT // 2 :]))
        whole = whole.permute([0, 2, 1]).reshape([whole.shape[0], 2 * whole.shape[1]])
    return whole


@gluon.constexpr_function
def acc_columns_of_piece(shape):
    """Columns of the accumulator that make up the EPI_N columns of a piece of C."""
    return 2 * shape.EPI_N if shape.GATED else shape.EPI_N


@gluon.jit
def piece_of(acc, PIECE: gl.constexpr, SHAPE: gl.constexpr):
    """Piece `PIECE` of the tensors `acc`, EPI_N columns of C; registers only.

    Of a pair, which has one slab, the gate is the left half of each tensor.
    """
    if SHAPE.GATED:
        gate, up = halves_of(acc, 0), halves_of(acc, 1)
        piece = (columns_of(gate, PIECE, SHAPE.EPI_N), columns_of(up, PIECE, SHAPE.EPI_N))
    else:
        piece = columns_of(acc, PIECE, SHAPE.EPI_N)
    return piece


@gluon.jit
def halves_of(acc, HALF: gl.constexpr):
    """The left (0) or right half of each of the tensors."""
    halves = ()
    for i in gl.static_range(len(acc)):
        halves += (split_columns(acc[i], HALF, 2),)
    return halves
