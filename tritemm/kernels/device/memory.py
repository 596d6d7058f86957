"""Tiles in shared memory and in registers: their layouts and views."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import reinterpret


@gluon.constexpr_function
def shared_layout(rows, cols, dtype):
    """The swizzle of a [rows, cols] tile in shared memory that TMA and WGMMA agree on."""
    return gl.NVMMASharedLayout.get_default_for([rows, cols], dtype)


@gluon.constexpr_function
def mma_layout(columns, warps, dtype=gl.bfloat16):
    """WGMMA's accumulator of that many columns, `warps` along its rows, for operands of `dtype`.

    256 columns of int8 are two instructions, because Triton considers one impossible.
    """
    columns = 128 if columns == 256 and dtype.is_int8() else columns
    return gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, columns, 256 // dtype.primitive_bitwidth]
    )


@gluon.constexpr_function
def in_bytes(type_):
    """Whether operands of this type in PTX have 8 bits: s8.s8, or e4m3 and e5m2."""
    return type_[0] in "se"


@gluon.constexpr_function
def in_blocks(shape):
    """Whether K is cut into groups that are whole blocks: WGMMA reads the operands only along K."""
    return shape.GROUPS == "k" and in_bytes(shape.TYPE.value)


@gluon.constexpr_function
def acc_type(type_):
    """The accumulator's type, for operands of this type in PTX."""
    return gl.int32 if type_[0] == "s" else gl.float32


@gluon.constexpr_function
def acc_columns(acc):
    """Columns of an accumulator, a tuple of tensors side by side."""
    return sum(each.shape[1] for each in acc)


@gluon.jit
def buffers(COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, MAJOR: gl.constexpr,
            DTYPE: gl.constexpr):  # fmt: skip
    """Shared memory for `COUNT` tiles [ROWS, COLS], each stored by rows ("N") or columns ("T")."""
    FIRST: gl.constexpr = COLS if MAJOR == "T" else ROWS
    SECOND: gl.constexpr = ROWS if MAJOR == "T" else COLS
    layout: gl.constexpr = shared_layout(FIRST, SECOND, DTYPE)
    return gl.allocate_shared_memory(DTYPE, [COUNT, FIRST, SECOND], layout)


@gluon.jit
def tile_view(memory, index, MAJOR: gl.constexpr):
    """Tile `index` of `buffers` as [ROWS, COLS]."""
    tile = memory.index(index)
    if MAJOR == "T":
        tile = tile.permute((1, 0))
    return tile


@gluon.jit
def corner(row, col, MAJOR: gl.constexpr):
    """(row, col) in the order of a descriptor's dimensions."""
    return (col, row) if MAJOR == "T" else (row, col)


@gluon.jit
def as_box(memory, desc):
    """A tile in shared memory with the shape of the descriptor's box, [1, 1, rows, columns]."""
    return reinterpret(memory, desc.dtype, desc.block_type.shape, desc.layout)


@gluon.jit
def cut(tensor, COLUMNS: gl.constexpr):
    """A tensor's columns as a tuple of tensors of `COLUMNS` each; registers only."""
    if tensor.shape[1] == COLUMNS:
        parts = (tensor,)
    else:
        halves = tensor.reshape([tensor.shape[0], 2, tensor.shape[1] // 2]).permute([0, 2, 1])
        left, right = halves.split()
        parts = cut(left, COLUMNS) + cut(right, COLUMNS)
    return parts


@gluon.jit
def joined(parts):
    """Tensors side by side as one; their number is a power of two; registers only."""
    COUNT: gl.constexpr = len(parts)
    if COUNT == 1:
        whole = parts[0]
    else:
        whole = gl.join(joined(parts[: COUNT // 2]), joined(parts[COUNT // 2 :]))
        whole = whole.permute([0, 2, 1]).reshape([whole.shape[0], 2 * whole.shape[1]])
    return whole
