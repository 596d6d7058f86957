"""The epilogue: what becomes of the sums, some columns at a time.

The copy engine stores them, by way of shared memory, or threads do.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from .finish import finish
from .language import Value, aggregate, async_store, tma_store_wait
from .memory import acc_columns, as_box, buffers, corner, tile_view
from .tile import widen

#: Columns whose epilogue is worked out together.
AT_ONCE = gl.constexpr(16)


@gluon.constexpr_function
def by_engine(major):
    """Whether the copy engine stores C, by rows (N) or columns (T), and not threads (n, t)."""
    return major in ("N", "T")


@gluon.constexpr_function
def lanes_along(major, warps):
    """Lanes beside each other along the rows (n) or the columns (t) of C."""
    if major == "n":
        return gl.BlockedLayout([1, 1], [1, 32], [warps, 1], [1, 0])
    return gl.BlockedLayout([1, 1], [32, 1], [1, warps], [0, 1])


@gluon.jit
def columns_of(acc, PIECE: gl.constexpr, COLUMNS: gl.constexpr):
    """Columns PIECE * COLUMNS and on, so many, of tensors side by side; registers only."""
    FIRST: gl.constexpr = acc[0].shape[1] // COLUMNS
    if PIECE < FIRST:
        piece = part_of(acc[0], PIECE, FIRST)
    else:
        piece = columns_of(acc[1:], PIECE - FIRST, COLUMNS)
    return piece


@gluon.jit
def part_of(acc, PART: gl.constexpr, PARTS: gl.constexpr):
    """Columns `PART` of `PARTS` equal ones."""
    if PARTS > 1:
        HALF: gl.constexpr = PARTS // 2
        left, right = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]).split()
        if PART < HALF:  # noqa: SIM108
            acc = part_of(left, PART, HALF)
        else:
            acc = part_of(right, PART - HALF, HALF)
    return acc


@gluon.constexpr_function
def piece_parts(columns):
    """Of a piece, so that only what a few columns need is in registers at a time."""
    return max(1, columns // AT_ONCE.value)


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


@aggregate
class Epilogue:
    """C, and `BUFFERS` in shared memory for each consumer's pieces of ROWS x EPI_N."""

    c_desc: Value
    c_ptr: Value
    memory: Value
    M: Value
    N: Value
    stride_c0: Value
    stride_c1: Value
    stride_cm: Value
    stride_cn: Value
    extra: Value  # as `finish` takes it
    SHAPE: gl.constexpr

    @gluon.jit
    def store(self, acc, unit, WHICH: gl.constexpr, SLAB: gl.constexpr):
        """Write consumer `WHICH`'s sums, of slab `SLAB` of the tile and those below it."""
        PIECES: gl.constexpr = self.SHAPE.BLOCK_N // self.SHAPE.EPI_N
        for i in gl.static_range(acc_columns(acc) // self.SHAPE.EPI_N):
            self.store_piece(
                columns_of(acc, i, self.SHAPE.EPI_N), unit, (SLAB + i // PIECES) * self.SHAPE.ROWS,
                i % PIECES * self.SHAPE.EPI_N, WHICH, i,
            )  # fmt: skip

    @gluon.jit
    def store_piece(self, piece, unit, row, col, WHICH: gl.constexpr, NTH: gl.constexpr = 0):
        """Write consumer `WHICH`'s piece `NTH`, which is at (row, col) of the unit's tile."""
        SHAPE: gl.constexpr = self.SHAPE
        row += unit.row
        col += unit.col
        piece = self.elementwise(piece, unit, row, col)
        if by_engine(SHAPE.C_MAJOR):
            # So many pieces are in other buffers; those before them have been read.
            tma_store_wait(NTH if NTH < SHAPE.BUFFERS else SHAPE.BUFFERS - 1)
            BUFFER: gl.constexpr = WHICH * SHAPE.BUFFERS + NTH % SHAPE.BUFFERS
            tile_view(self.memory, BUFFER, SHAPE.C_MAJOR).store(piece)
            fence_async_shared()
            self.tma_store(unit, row, col, self.memory.index(BUFFER))
        else:
            self.store_pointers(unit, row, col, piece)

    @gluon.jit
    def tail(self):
        """Wait until shared memory has been read: it must outlive that."""
        tma_store_wait(0)

    @gluon.jit
    def elementwise(self, piece, unit, row, col):
        """What C gets of the sums at (row, col), element by element."""
        SHAPE: gl.constexpr = self.SHAPE
        PARTS: gl.constexpr = 1 if SHAPE.PLAIN else piece_parts(piece.shape[1])
        done = ()
        for i in gl.static_range(PARTS):
            part = part_of(piece, i, PARTS)
            done += (self.finish(part, unit, row, col + i * part.shape[1]),)
        return joined(done)

    @gluon.jit
    def finish(self, piece, unit, row, col):
        """What C gets of a few columns of sums."""
        layout: gl.constexpr = piece.type.layout
        offs_m = row + gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
        offs_n = col + gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
        offs_m, offs_n = widen(offs_m, self.SHAPE.WIDE), widen(offs_n, self.SHAPE.WIDE)
        piece = finish(
            piece, self.extra, unit.b0, unit.b1, offs_m, offs_n, self.M, self.N,
            self.SHAPE.BIAS, self.SHAPE.ACTIVATION,
        )  # fmt: skip
        return piece.to(self.c_ptr.dtype.element_ty)

    @gluon.jit
    def tma_store(self, unit, row, col, memory):
        """Give a tile of C to the copy engine."""
        i, j = corner(row, col, self.SHAPE.C_MAJOR)
        if self.SHAPE.BATCHED:
            memory = as_box(memory, self.c_desc)
            async_store(self.c_desc, [unit.b0, unit.b1, i, j], memory)
        else:
            async_store(self.c_desc, [i, j], memory)

    @gluon.jit
    def store_pointers(self, unit, row, col, piece):
        """Write what of a piece lies inside C; neighbouring lanes write neighbouring elements."""
        layout: gl.constexpr = lanes_along(self.SHAPE.C_MAJOR, gl.num_warps())
        piece = gl.convert_layout(piece, layout)
        offs_m = row + gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
        offs_n = col + gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
        mask = (offs_m[:, None] < self.M) & (offs_n[None, :] < self.N)
        if self.SHAPE.WIDE:
            offs_m = offs_m.to(gl.int64)
            offs_n = offs_n.to(gl.int64)
        c_ptr = self.c_ptr + gl.cast(unit.b0, gl.int64) * self.stride_c0
        c_ptr += gl.cast(unit.b1, gl.int64) * self.stride_c1
        c_ptrs = c_ptr + offs_m[:, None] * self.stride_cm + offs_n[None, :] * self.stride_cn
        gl.store(c_ptrs, piece, mask=mask)


@gluon.jit
def make_epilogue(
    c_desc, c_ptr, M, N, stride_c0, stride_c1, stride_cm, stride_cn, extra, SHAPE: gl.constexpr
):
    """With its memory."""
    memory = c_ptr
    if by_engine(SHAPE.C_MAJOR):
        COUNT: gl.constexpr = SHAPE.CONSUMERS * SHAPE.BUFFERS
        DTYPE: gl.constexpr = c_ptr.dtype.element_ty
        memory = buffers(COUNT, SHAPE.ROWS, SHAPE.EPI_N, SHAPE.C_MAJOR, DTYPE)
    strides = stride_c0, stride_c1, stride_cm, stride_cn
    return Epilogue(c_desc, c_ptr, memory, M, N, *strides, extra, SHAPE)
