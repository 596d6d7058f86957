"""Tiles in shared memory and in registers: their layouts and views."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import REINTERPRET


@gluon.constexpr_function
def first_part(columns):
    """The largest power of two that is not above `columns`."""
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
    """Columns of all tensors of the sums together."""
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
    """(row, col) as a descriptor counts them: turned, of a matrix stored by columns."""
    return (col, row) if MAJOR == "T" else (row, col)


@gluon.jit
def as_box(memory, desc):
    """A tile in shared memory with the shape of the descriptor's box, [1, 1, rows, columns]."""
    if REINTERPRET:
        box = memory.reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    else:
        box = memory._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    return box


@gluon.jit
def in_halves(memory, MAJOR: gl.constexpr):
    """`buffers` of tiles as their left and right halves; `gluon_host.odd_halves` says of which."""
    COUNT: gl.constexpr = 2 * memory.shape[0]
    FIRST: gl.constexpr = memory.shape[1] // (2 if MAJOR == "T" else 1)
    SECOND: gl.constexpr = memory.shape[2] // (1 if MAJOR == "T" else 2)
    LAYOUT: gl.constexpr = shared_layout(FIRST, SECOND, memory.dtype)
    if REINTERPRET:
        halves = memory.reinterpret(memory.dtype, [COUNT, FIRST, SECOND], LAYOUT)
    else:
        halves = memory._reinterpret(memory.dtype, [COUNT, FIRST, SECOND], LAYOUT)
    return halves


@gluon.constexpr_function
def place_of(acc, piece, columns):
    """Which of the tensors side by side has a piece of so many columns; which part, of how many."""
    parts = [each.shape[1] // columns for each in acc]
    nth = next(i for i in range(len(parts)) if piece < sum(parts[: i + 1]))
    return nth, piece - sum(parts[:nth]), parts[nth]


@gluon.jit
def columns_of(acc, PIECE: gl.constexpr, COLUMNS: gl.constexpr):
    """Columns PIECE * COLUMNS and on, so many, of tensors side by side; registers only."""
    PLACE: gl.constexpr = place_of(acc, PIECE, COLUMNS)
    return part_of(acc[PLACE[0]], PLACE[1], PLACE[2])


@gluon.jit
def part_of(acc, PART: gl.constexpr, PARTS: gl.constexpr):
    """Columns `PART` of `PARTS` equal ones."""
    if PARTS > 1:
        HALF: gl.constexpr = PARTS // 2
        left, right = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]).split()
        acc = part_of(left if PART < HALF else right, PART % HALF, HALF)
    return acc
