"""What follows the sums of a piece, in Gluon; of a gated product's pairs, activation(gate) * up."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .finish import finish_with
from .finish_piece import joined, load_part, parts_ahead, piece_parts
from .memory import acc_columns, columns_of, part_of

#: In the place of what isn't there.
NONE = gl.constexpr(None)


@gluon.jit
def load_pair(part, extra, unit, row, col, M, N, SHAPE: gl.constexpr):
    """Those that there are of the gate's bias, the other's and the residual, at (row, col) of C.

    C is M x N; the other bias stands N elements behind the gate's.
    """
    loaded = ()
    if extra[0] is not None:
        loaded += load_part(part, (extra[0], NONE), unit, row, col, M, N, SHAPE)
        loaded += load_part(part, (extra[0] + N, NONE), unit, row, col, M, N, SHAPE)
    if extra[1] is not None:
        after = (NONE, extra[1], NONE, NONE, extra[4], extra[5], extra[6], extra[7])
        loaded += load_part(part, after, unit, row, col, M, N, SHAPE)
    return loaded


@gluon.jit
def finish_pair(gate, up, extra, loaded, SHAPE: gl.constexpr):
    """activation(alpha * gate + bias) * (alpha * up + bias) + beta * residual."""
    before = (extra[0], NONE, extra[2])
    gate = finish_with(gate, before, loaded, SHAPE.ACTIVATION)
    up = finish_with(up, before, loaded[1:], "")
    return finish_with(gate * up, (NONE, extra[1], NONE, extra[3]), loaded, "")


@gluon.jit
def finish_any(piece, extra, unit, row, col, M, N, DTYPE: gl.constexpr, SHAPE: gl.constexpr):
    """What C, of type DTYPE, gets of a piece at (row, col), which is as `piece_of` has it.

    `extra` is as in `finish`.
    """
    halves = (piece,)
    if SHAPE.GATED:
        halves = piece
    # Sums of both halves are in registers.
    PARTS: gl.constexpr = 1 if SHAPE.PLAIN else piece_parts(acc_columns(halves))
    COLUMNS: gl.constexpr = halves[0].shape[1] // PARTS
    AHEAD: gl.constexpr = parts_ahead(SHAPE)
    loaded = ()
    done = ()
    for i in gl.static_range(PARTS + AHEAD):
        if i < PARTS:
            part, at = part_of(halves[0], i, PARTS), col + i * COLUMNS
            if SHAPE.GATED:
                loaded += (load_pair(part, extra, unit, row, at, M, N, SHAPE),)
            else:
                loaded += (load_part(part, extra, unit, row, at, M, N, SHAPE),)
        if i >= AHEAD:
            part = part_of(halves[0], i - AHEAD, PARTS)
            if SHAPE.GATED:
                up = part_of(halves[1], i - AHEAD, PARTS)
                part = finish_pair(part, up, extra, loaded[i - AHEAD], SHAPE)
            else:
                part = finish_with(part, extra, loaded[i - AHEAD], SHAPE.ACTIVATION)
            done += (part.to(DTYPE),)
    return joined(done)


@gluon.constexpr_function
def sums_of_piece(shape):
    """Columns of sums that make up the EPI_N columns of a piece of C."""
    return 2 * shape.EPI_N if shape.GATED else shape.EPI_N


@gluon.jit
def piece_of(acc, PIECE: gl.constexpr, SHAPE: gl.constexpr):
    """The sums of a piece. Of a gated product, which has one slab, those of the gate come first:
    they are the left halves of the tensors `acc`. Registers only.
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
        halves += (part_of(acc[i], HALF, 2),)
    return halves
