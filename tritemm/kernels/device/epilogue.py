"""The epilogue: pieces of the accumulator become pieces of C, some columns at a time.

TMA stores them, via shared memory, or threads do.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from .language import Value, aggregate, async_store, tma_store_wait
from .memory import as_box, buffers, corner, in_blocks, tile_view
from .offsets import batch_offset, widen
from .subtile import finish_piece, pieces_of


@gluon.constexpr_function
def by_tma(major):
    """Whether TMA stores C, by rows (N) or columns (T), and not threads (n, t)."""
    return major in ("N", "T")


@gluon.constexpr_function
def lanes_along(major, warps, mirror=False):
    """A layout with lanes side by side along the rows (n) or columns (t) of C, or of its mirror."""
    if (major == "n") != mirror:
        return gl.BlockedLayout([1, 1], [1, 32], [warps, 1], [1, 0])
    return gl.BlockedLayout([1, 1], [32, 1], [1, warps], [0, 1])


@gluon.constexpr_function
def ends_batch(shape, nth):
    """Whether the `nth` piece is the last of those that are stored together.

    Pieces of 8 columns are stored together for a whole slab, or as many as fill half of the buffers
    while TMA reads the others. Wider ones are stored one by one.
    """
    count, buffers = shape.BLOCK_N.value // shape.EPI_N.value, shape.BUFFERS.value
    several = 1 if shape.EPI_N > 8 else count if count <= buffers else (buffers + 1) // 2
    return nth % count + 1 == count or (nth % count + 1) % several == 0


@aggregate
class Epilogue:
    """C, M x N, and `BUFFERS` in shared memory for each consumer's pieces of ROWS x EPI_N."""

    c_desc: Value
    c_ptr: Value
    memory: Value
    mirror: Value  # as much, for pieces that are turned
    M: Value
    N: Value
    strides: Value
    args: Value  # EpilogueArgs
    SHAPE: gl.constexpr

    @gluon.jit
    def store(self, acc, unit, WHICH: gl.constexpr, SLAB: gl.constexpr):
        """Store consumer `WHICH`'s accumulator, slab `SLAB` of the tile and those below it."""
        SHAPE: gl.constexpr = self.SHAPE
        PIECES: gl.constexpr = SHAPE.BLOCK_N // (SHAPE.EPI_N * (1 + SHAPE.GATED))
        if in_blocks(SHAPE):
            acc = unit.checked(acc)
        pieces = pieces_of(acc, SHAPE)
        batch = ()
        for i in gl.static_range(len(pieces)):
            batch += (pieces[i],)
            if ends_batch(SHAPE, i):
                row, col = (SLAB + i // PIECES) * SHAPE.ROWS, i % PIECES * SHAPE.EPI_N
                self.store_pieces(batch, unit, row, col, WHICH, i)
                batch = ()

    @gluon.jit
    def store_pieces(self, pieces, unit, row, col, WHICH: gl.constexpr, LAST: gl.constexpr = 0):
        """Store consumer `WHICH`'s pieces up to number `LAST`, side by side.

        The last is at (row, col) of the unit's tile.
        """
        SHAPE: gl.constexpr = self.SHAPE
        DTYPE: gl.constexpr = self.c_ptr.dtype.element_ty
        FIRST: gl.constexpr = LAST + 1 - len(pieces)
        OTHERS: gl.constexpr = SHAPE.BUFFERS - len(pieces)
        BUFFER: gl.constexpr = WHICH * SHAPE.BUFFERS
        row += unit.row
        col += unit.col // (1 + SHAPE.GATED) - (len(pieces) - 1) * SHAPE.EPI_N
        if by_tma(SHAPE.C_MAJOR):
            # At most `OTHERS` stores are in flight, from other buffers than those written next.
            PENDING: gl.constexpr = FIRST if FIRST < OTHERS else OTHERS
            tma_store_wait(PENDING * (2 if SHAPE.TRIANGULAR else 1))
        for i in gl.static_range(len(pieces)):
            at = col + i * SHAPE.EPI_N
            piece = finish_piece(pieces[i], self.args, unit, row, at, self.M, self.N, DTYPE, SHAPE)
            if by_tma(SHAPE.C_MAJOR):
                index = BUFFER + (FIRST + i) % SHAPE.BUFFERS
                if SHAPE.TRIANGULAR:
                    self.tma_store_mirrored(unit, row, at, piece, index)
                else:
                    tile_view(self.memory, index, SHAPE.C_MAJOR).store(piece)
            else:
                self.store_pointers(unit, row, at, piece)
                if SHAPE.TRIANGULAR:
                    self.store_pointers(unit, row, at, piece, True)
        if by_tma(SHAPE.C_MAJOR) and not SHAPE.TRIANGULAR:
            fence_async_shared()
            for i in gl.static_range(len(pieces)):
                memory = self.memory.index(BUFFER + (FIRST + i) % SHAPE.BUFFERS)
                self.tma_store(unit, row, col + i * SHAPE.EPI_N, memory)

    @gluon.jit
    def tail(self):
        """Wait until TMA has read shared memory, which must outlive that."""
        tma_store_wait(0)

    @gluon.jit
    def tma_store(self, unit, row, col, memory):
        """Have TMA store a piece of C."""
        here = (unit.b0, unit.b1, row, col)
        b0, b1, row, col = unit.stored_to(row, col) if self.SHAPE.GROUPS != "" else here
        i, j = corner(row, col, self.SHAPE.C_MAJOR)
        if self.SHAPE.BATCHED:
            memory = as_box(memory, self.c_desc)
            async_store(self.c_desc, [b0, b1, i, j], memory)
        else:
            async_store(self.c_desc, [i, j], memory)

    @gluon.jit
    def tma_store_mirrored(self, unit, row, col, piece, index):
        """Have TMA store a square piece of a symmetric C and its mirror.

        What isn't below the diagonal goes to rows past C's end; in a piece on the diagonal, the
        upper half first becomes the mirror of the lower.
        """
        layout: gl.constexpr = piece.type.layout
        memory, mirror = self.memory.index(index), self.mirror.index(index)
        memory.store(piece)
        tile_view(self.mirror, index, "T").store(piece)
        if row == col:
            offs_m = gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
            offs_n = gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
            lower = offs_m[:, None] >= offs_n[None, :]
            memory.store(gl.where(lower, piece, mirror.load(layout)))
        fence_async_shared()
        self.tma_store(unit, gl.where(row >= col, row, self.M), col, memory)
        self.tma_store(unit, gl.where(row > col, col, self.M), row, mirror)

    @gluon.jit
    def store_pointers(self, unit, row, col, piece, MIRROR: gl.constexpr = False):
        """Store what of a piece is inside C; neighbouring lanes write neighbouring elements.

        For a symmetric C that is the part on and below the diagonal; or below it, as the `MIRROR`.
        """
        layout: gl.constexpr = lanes_along(self.SHAPE.C_MAJOR, gl.num_warps(), MIRROR)
        piece = gl.convert_layout(piece, layout)
        offs_m = row + gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
        offs_n = col + gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
        M, N = unit.limits(self.M, self.N) if self.SHAPE.GROUPS != "" else (self.M, self.N)
        mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        if MIRROR:
            mask &= offs_m[:, None] > offs_n[None, :]
        elif self.SHAPE.TRIANGULAR:
            mask &= offs_m[:, None] >= offs_n[None, :]
        offs_m, offs_n = widen(offs_m, self.SHAPE.WIDE), widen(offs_n, self.SHAPE.WIDE)
        strides = self.strides
        c_ptr = self.c_ptr + batch_offset(unit.b0, unit.b1, strides.b0, strides.b1)
        along_m, along_n = (strides.n, strides.m) if MIRROR else (strides.m, strides.n)
        c_ptrs = c_ptr + offs_m[:, None] * along_m + offs_n[None, :] * along_n
        gl.store(c_ptrs, piece, mask=mask)


@gluon.jit
def make_epilogue(c_desc, c_ptr, M, N, strides, args, SHAPE: gl.constexpr):
    """The epilogue with its memory."""
    memory = c_ptr
    if by_tma(SHAPE.C_MAJOR):
        COUNT: gl.constexpr = SHAPE.CONSUMERS * SHAPE.BUFFERS
        DTYPE: gl.constexpr = c_ptr.dtype.element_ty
        memory = buffers(COUNT, SHAPE.ROWS, SHAPE.EPI_N, SHAPE.C_MAJOR, DTYPE)
    mirror = memory
    if SHAPE.TRIANGULAR and by_tma(SHAPE.C_MAJOR):
        mirror = buffers(COUNT, SHAPE.ROWS, SHAPE.EPI_N, "T", DTYPE)
    columns = N // (1 + SHAPE.GATED)
    return Epilogue(c_desc, c_ptr, memory, mirror, M, columns, strides, args, SHAPE)
