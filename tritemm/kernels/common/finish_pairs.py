"""What follows the sums of a gated product, in Gluon: activation(gate) * up of pairs of columns."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .finish import finish
from .finish_piece import joined, piece_parts
from .memory import part_of
from .tile import widen

#: In the place of what `finish` is not to do.
NONE = gl.constexpr(None)


@gluon.jit
def finish_pair(gate, up, extra, unit, row, col, M, N, SHAPE: gl.constexpr):
    """activation(alpha * gate + bias) * (alpha * up + bias) + beta * residual, at (row, col) of C.

    C is M x N; the bias of `up` stands N elements behind the gate's.
    """
    layout: gl.constexpr = gate.type.layout
    offs_m = row + gl.arange(0, gate.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, gate.shape[1], gl.SliceLayout(0, layout))
    offs_m, offs_n = widen(offs_m, SHAPE.WIDE), widen(offs_n, SHAPE.WIDE)
    b0, b1, bias = unit.b0, unit.b1, extra[0]
    before = (bias, NONE, extra[2], NONE)
    gate = finish(gate, before, b0, b1, offs_m, offs_n, M, N, "n", SHAPE.ACTIVATION)
    if bias is not None:
        bias += N
    before = (bias, NONE, extra[2], NONE)
    up = finish(up, before, b0, b1, offs_m, offs_n, M, N, "n", "")
    after = (NONE, extra[1], NONE, extra[3], extra[4], extra[5], extra[6], extra[7])
    return finish(gate * up, after, b0, b1, offs_m, offs_n, M, N, "n", "")


@gluon.jit
def finish_pairs(gate, up, extra, unit, row, col, M, N, DTYPE: gl.constexpr, SHAPE: gl.constexpr):
    """What C, of type DTYPE, gets of the sums at (row, col); `extra` as in `finish`."""
    PARTS: gl.constexpr = piece_parts(2 * gate.shape[1])  # sums of both are in registers
    done = ()
    for i in gl.static_range(PARTS):
        left, right = part_of(gate, i, PARTS), part_of(up, i, PARTS)
        at = col + i * left.shape[1]
        done += (finish_pair(left, right, extra, unit, row, at, M, N, SHAPE).to(DTYPE),)
    return joined(done)
