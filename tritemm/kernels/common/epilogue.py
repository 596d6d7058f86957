"""Device helpers of the Gluon rungs: what becomes of the sums.

They are stored piece by piece, some columns at a time: by the copy engine, by way of shared memory,
or by threads. Or they are parts of a sum, and are deposited until the last of them has come. Then
its program adds them up, or each program a share of them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from .mainloop import as_box, corner, first_part, mma_layout, tile_view

# Names that moved between Triton 3.6 and 3.9.
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
store_wait = tma.store_wait


#: Parts of a sum whose loads are unrolled.
UNROLLED = gl.constexpr(16)
#: Owners of a share of a sum, at most: each has a bit.
OWNERS = gl.constexpr(16)
#: How often an owner looks whether the others have come, about a microsecond each time.
PATIENCE = gl.constexpr(64)


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
def part_of(acc, PART: gl.constexpr, PARTS: gl.constexpr):
    """Columns `PART` of `PARTS` equal ones; registers only."""
    if PARTS > 1:
        HALF: gl.constexpr = PARTS // 2
        left, right = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]).split()
        if PART < HALF:  # noqa: SIM108
            acc = part_of(left, PART, HALF)
        else:
            acc = part_of(right, PART - HALF, HALF)
    return acc


@gluon.jit
def piece_of(acc0, acc1, PIECE: gl.constexpr, BLOCK_N: gl.constexpr, EPI_N: gl.constexpr):
    """Columns PIECE * EPI_N and on, EPI_N of them, of both parts together."""
    N0: gl.constexpr = first_part(BLOCK_N)
    if PIECE * EPI_N < N0:
        piece = part_of(acc0, PIECE, N0 // EPI_N)
    else:
        piece = part_of(acc1, PIECE - N0 // EPI_N, (BLOCK_N - N0) // EPI_N)
    return piece


@gluon.jit
def store_piece(
    c_desc, c_ptr, c_memory, piece, b0, b1, row, col, M, N,
    stride_c0, stride_c1, stride_cm, stride_cn,
    C_MAJOR: gl.constexpr, BATCHED: gl.constexpr, WIDE: gl.constexpr, SLAB: gl.constexpr = 0,
    PIECE: gl.constexpr = 0, BUFFERS: gl.constexpr = 1,
):  # fmt: skip
    """Write piece `PIECE` of a slab's or tile's, some columns, the first at (row, col).

    By way of shared memory, it takes the next of `BUFFERS` that each slab has in `c_memory`.
    """
    piece = piece.to(c_ptr.dtype.element_ty)
    if by_engine(C_MAJOR):
        # So many pieces of this tile are in other buffers; those of the one before are all read.
        store_wait(PIECE if PIECE < BUFFERS else BUFFERS - 1)
        BUFFER: gl.constexpr = SLAB * BUFFERS + PIECE % BUFFERS
        tile_view(c_memory, BUFFER, C_MAJOR).store(piece)
        fence_async_shared()
        send(c_desc, b0, b1, row, col, c_memory.index(BUFFER), C_MAJOR, BATCHED)
    else:
        store_pointers(
            c_ptr, piece, b0, b1, row, col, M, N,
            stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, WIDE,
        )  # fmt: skip


@gluon.jit
def store_tile(
    c_desc, c_ptr, c_memory, acc0, acc1, b0, b1, row, col, M, N,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_N: gl.constexpr, EPI_N: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, SLAB: gl.constexpr = 0,
):  # fmt: skip
    """Write both parts of a tile at (row, col), `EPI_N` columns at a time."""
    for i in gl.static_range(BLOCK_N // EPI_N):
        piece = piece_of(acc0, acc1, i, BLOCK_N, EPI_N)
        store_piece(
            c_desc, c_ptr, c_memory, piece, b0, b1, row, col + i * EPI_N, M, N,
            stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE, SLAB,
        )  # fmt: skip


@gluon.jit
def send(desc, b0, b1, row, col, memory, MAJOR: gl.constexpr, BATCHED: gl.constexpr):
    """Give a tile of C to the copy engine."""
    i, j = corner(row, col, MAJOR)
    if BATCHED:
        memory = as_box(memory, desc)
        _store(desc, [b0, b1, i, j], memory)
    else:
        _store(desc, [i, j], memory)


@gluon.jit
def store_pointers(c_ptr, piece, b0, b1, row, col, M, N, stride_c0, stride_c1, stride_cm, stride_cn,
                   C_MAJOR: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Write what of a piece lies inside M x N; neighbouring lanes write neighbouring elements."""
    layout: gl.constexpr = lanes_along(C_MAJOR, gl.num_warps())
    piece = gl.convert_layout(piece, layout)
    offs_m = row + gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    if WIDE:
        offs_m = offs_m.to(gl.int64)
        offs_n = offs_n.to(gl.int64)
    c_ptr += gl.cast(b0, gl.int64) * stride_c0 + gl.cast(b1, gl.int64) * stride_c1
    gl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, piece, mask=mask)


@gluon.jit
def _offsets(acc):
    """Where each element of `acc` stands in its partial sum: 8 x 8 blocks, one row after another.

    So the lanes of a warp, which hold 8 rows of 8 columns, write and read 256 bytes in a row.
    """
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))[:, None]
    cols = gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))[None, :]
    return (rows // 8) * (8 * acc.shape[1]) + (cols // 8) * 64 + (rows % 8) * 8 + cols % 8


@gluon.jit
def deposit(ptr, acc0, acc1, BLOCK_N: gl.constexpr, EPI_N: gl.constexpr):
    """Write a tile's BLOCK_M * BLOCK_N partial sums at `ptr`, `EPI_N` columns at a time."""
    for i in gl.static_range(BLOCK_N // EPI_N):
        deposit_piece(ptr, piece_of(acc0, acc1, i, BLOCK_N, EPI_N), i)


@gluon.jit
def deposit_piece(ptr, piece, i):
    """Write piece `i` of the partial sums at `ptr`, whose pieces are all alike."""
    ROWS: gl.constexpr = piece.shape[0]
    COLS: gl.constexpr = piece.shape[1]
    piece = gl.convert_layout(piece, mma_layout(ROWS, COLS, gl.num_warps()))
    gl.store(ptr + i * (ROWS * COLS) + _offsets(piece), piece)


@gluon.jit
def piece_offsets(piece, BLOCK_M: gl.constexpr, EPI_N: gl.constexpr):
    """Where piece `piece` of a partial sum stands, in the layout of its sums."""
    like = gl.zeros((BLOCK_M, EPI_N), gl.float32, mma_layout(BLOCK_M, EPI_N, gl.num_warps()))
    return piece * (BLOCK_M * EPI_N) + _offsets(like)


@gluon.jit
def add_parts(sums, piece, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
              EPI_N: gl.constexpr):  # fmt: skip
    """The sum of a piece's parts, in their order; each part of a tile follows the one before."""
    where = piece_offsets(piece, BLOCK_M, EPI_N)
    total = gl.load(sums + where, cache_modifier=".cg")
    if PARTS <= UNROLLED:
        for part in gl.static_range(1, PARTS):
            total += gl.load(sums + part * (BLOCK_M * BLOCK_N) + where, cache_modifier=".cg")
    else:
        for part in range(1, PARTS):
            total += gl.load(sums + part * (BLOCK_M * BLOCK_N) + where, cache_modifier=".cg")
    return total


@gluon.constexpr_function
def shares(pieces, parts, together):
    """Into which the sum of so many pieces is cut: one, unless the parts run `together`."""
    return min(pieces, parts, OWNERS) if together else 1


@gluon.jit
def take_shares(word, part, PARTS: gl.constexpr, SHARES: gl.constexpr):
    """The shares of a sum, a bit each, that this consumer adds up: its sums are part `part`.

    All of them or none, if there is one share, for the last to come. Else see `arrive_owner`.
    """
    if SHARES > 1:
        mine = arrive_owner(word, part, PARTS, SHARES)
    else:
        mine = arrive_last(word, PARTS).to(gl.int32)
    return mine


@gluon.jit
def arrive_last(counter, COUNT):
    """Whether this consumer is the last of COUNT to get here; then the counter is 0 again.

    What the others wrote before they came is visible after it.
    """
    barrier()
    last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == COUNT - 1
    if last:
        gl.store(counter, 0)
    return last


@gluon.jit
def arrive_owner(word, part, PARTS: gl.constexpr, OWNERS: gl.constexpr):
    """The owners, a bit each, whose shares of the sum this consumer adds up: it is part `part`.

    Parts below `OWNERS` own a share each, and wait for the others. Nothing says that the others
    run already, so who has looked `PATIENCE` times leaves its share to the last that comes.
    `word` is 0 before and after. From its lowest bit on: 8 that count who came, 16 for owners that
    left, and the number of shares that are taken.
    """
    barrier()
    seen = gl.atomic_add(word, 1, sem="acq_rel", scope="gpu") + 1
    last = (seen & 255) == PARTS
    own = gl.where(part < OWNERS, 1 << gl.minimum(part, OWNERS - 1), 0)
    looks = gl.to_tensor(0)
    if own != 0:
        while ((seen & 255) != PARTS) & (looks < PATIENCE):
            seen = gl.atomic_add(word, 0, sem="acq_rel", scope="gpu")
            looks += 1
        if (seen & 255) != PARTS:
            # If all have come meanwhile, it stays.
            seen = gl.atomic_or(word, own << 8, sem="acq_rel", scope="gpu")
    mine = gl.where((seen & 255) == PARTS, own, 0)
    if last:
        mine |= (seen >> 8) & 0xFFFF
    if mine != 0:
        count = _bits(mine)
        taken = gl.atomic_add(word, count << 24, sem="acq_rel", scope="gpu") >> 24
        if taken + count == OWNERS:
            gl.store(word, 0)
    return mine


@gluon.jit
def _bits(mask):
    """How many are set."""
    return gl.inline_asm_elementwise(
        "popc.b32 $0, $1;", "=r,r", [mask], gl.int32, is_pure=True, pack=1
    )
