"""What a piece of a tile is finished by, in Gluon: a few columns at a time, and their loads."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .finish import load_extra
from .tile import widen

#: Columns whose epilogue is worked out together.
AT_ONCE = gl.constexpr(16)
#: Parts of so many columns whose loads are under way meanwhile, beside so many sums of a thread.
AHEAD = gl.constexpr(3)
ROOMY = gl.constexpr(128)


@gluon.constexpr_function
def piece_parts(columns):
    """Of a piece, so that only what a few columns need is in registers at a time."""
    return max(1, columns // AT_ONCE.value)


@gluon.constexpr_function
def parts_ahead(shape):
    """Whose loads are under way while one is worked out; none where registers are short."""
    roomy = ROOMY.value * 32 * shape.WARPS >= shape.ROWS * shape.BLOCK_N
    return AHEAD.value if roomy and not shape.PLAIN else 0


@gluon.jit
def joined(parts):
    """Tensors side by side as one, whose number is a power of two; registers only."""
    COUNT: gl.constexpr = len(parts)
    if COUNT == 1:
        whole = parts[0]
    else:
        whole = gl.join(joined(parts[: COUNT // 2]), joined(parts[COUNT // 2 :]))
        whole = whole.permute([0, 2, 1]).reshape([whole.shape[0], 2 * whole.shape[1]])
    return whole


@gluon.jit
def load_part(part, extra, unit, row, col, M, N, SHAPE: gl.constexpr):
    """`load_extra` for the sums at (row, col)."""
    layout: gl.constexpr = part.type.layout
    offs_m = row + gl.arange(0, part.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, part.shape[1], gl.SliceLayout(0, layout))
    offs_m, offs_n = widen(offs_m, SHAPE.WIDE), widen(offs_n, SHAPE.WIDE)
    return load_extra(extra, unit.b0, unit.b1, offs_m, offs_n, M, N, SHAPE.BIAS, SHAPE.LINES)
