"""Tiles of A that WGMMA takes from registers: tf32 that is not stored along K.

A fragment is half a step deep. Two alternate, so one is loaded while WGMMA reads the other.
`int4_roles` has fragments too, of weights of 4 bits.

The swizzled lines of such a tile run along M, and a warp reads 4 of them in 8 adjacent rows, which
hit each bank twice. So the fragments' rows are permuted: rows 4 to 7 and 16 to 19 of each 32 change
places, and so on, and every bank is read once. The accumulator's rows are then permuted in the same
way, until `permuted` undoes it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: The bits of a row's number that change places.
NEAR, FAR = gl.constexpr(4), gl.constexpr(16)


@gluon.constexpr_function
def in_registers(shape):
    """Whether WGMMA takes A from registers."""
    return shape.TYPE.value[:4] == "tf32" and shape.A_MAJOR.value == "T"


@gluon.constexpr_function
def operand_layout(acc, dtype=gl.float32):
    """The layout of a fragment of `dtype`, as WGMMA takes it for an accumulator in layout `acc`."""
    return gl.DotOperandLayout(0, acc, 32 // dtype.primitive_bitwidth)


@gluon.constexpr_function
def load_layout(rows, depth, warps):
    """The layout in which a fragment [rows, depth] is loaded, before its rows are `permuted`."""
    spread = [1 << i for i in range(4, warps.bit_length() + 3)]
    more = range(spread[-1].bit_length(), rows.bit_length() - 1)
    registers = [[8, 0], [0, 4], *([0, 1 << i] for i in range(3, depth.bit_length() - 1))]
    return gl.DistributedLinearLayout(
        registers + [[1 << i, 0] for i in more],
        [[0, 1], [0, 2], [1, 0], [2, 0], [FAR.value, 0]],
        [[NEAR.value, 0], *([row, 0] for row in spread[1:])],
        [],
        [rows, depth],
    )


@gluon.jit
def permuted(tensor):
    """The tensor with its rows permuted, or permuted back: its own inverse; registers only."""
    ROWS: gl.constexpr = tensor.shape[0]
    COLUMNS: gl.constexpr = tensor.shape[1]
    bits = tensor.reshape([ROWS // (2 * FAR), 2, FAR // (2 * NEAR), 2, NEAR, COLUMNS])
    return bits.permute([0, 3, 2, 1, 4, 5]).reshape([ROWS, COLUMNS])


@gluon.jit
def as_operand(fragment, acc):
    """The fragment as WGMMA takes it for `acc`; registers only."""
    LAYOUT: gl.constexpr = operand_layout(acc.type.layout, fragment.dtype)
    return gl.convert_layout(fragment, LAYOUT, assert_trivial=True)


@gluon.jit
def load_fragment(a, HALF: gl.constexpr, acc):
    """The left (0) or right half of the tile, as WGMMA takes it for `acc`."""
    ROWS: gl.constexpr = a.shape[0]
    DEPTH: gl.constexpr = a.shape[1] // 2
    half = a.slice(HALF * DEPTH, DEPTH, 1).load(load_layout(ROWS, DEPTH, gl.num_warps()))
    return as_operand(permuted(half), acc)
