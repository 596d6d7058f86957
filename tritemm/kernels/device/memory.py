"""Tiles in shared memory and in registers: their layouts and views."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import reinterpret


@gluon.constexpr_function
def first_block(columns):
    """N0 of BLOCK_N = N0 + N1: the largest power of two that is not above `columns`."""
    return 1 << (columns.bit_length() - 1)


@gluon.constexpr_function
def slab_rows(rows):
    """The largest power of two that divides `rows`: those of one consumer."""
    return rows & -rows


@gluon.constexpr_function
def shared_layout(rows, cols, dtype):
    """The swizzle of a [rows, cols] tile in shared memory that TMA and WGMMA agree on."""
    return gl.NVMMASharedLayout.get_default_for([rows, cols], dtype)


@gluon.constexpr_function
def mma_layout(block_m, columns, warps, dtype=gl.bfloat16):
    """WGMMA's accumulator of [block_m, columns], `warps` along the rows, of operands of `dtype`."""
    return gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, columns, 256 // dtype.primitive_bitwidth]
    )


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


@gluon.constexpr_function
def place_of(acc, piece, columns):
    """The place of a piece of so many `columns`: its tensor, its index there, and how many fit."""
    counts = [each.shape[1] // columns for each in acc]
    nth = next(i for i in range(len(counts)) if piece < sum(counts[: i + 1]))
    return nth, piece - sum(counts[:nth]), counts[nth]


@gluon.jit
def columns_of(acc, PIECE: gl.constexpr, COLUMNS: gl.constexpr):
    """`COLUMNS` columns of an accumulator, from PIECE * COLUMNS on; registers only."""
    PLACE: gl.constexpr = place_of(acc, PIECE, COLUMNS)
    return split_columns(acc[PLACE[0]], PLACE[1], PLACE[2])


@gluon.jit
def split_columns(acc, INDEX: gl.constexpr, COUNT: gl.constexpr):
    """The columns of a tensor cut into `COUNT` equal ranges: that of `INDEX`."""
    if COUNT > 1:
        HALF: gl.constexpr = COUNT // 2
        left, right = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]).split()
        acc = split_columns(left if INDEX < HALF else right, INDEX % HALF, HALF)
    return acc
