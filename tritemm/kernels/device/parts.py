"""Sums of parts of a tile's K: deposited in a workspace, and added up in their order.

The last program that comes adds up all, or each program a share of them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate, barrier
from .memory import acc_columns, columns_of, mma_layout

#: Parts of a sum whose loads are unrolled.
UNROLLED = gl.constexpr(16)
#: Owners of a share of a sum, at most: each has a bit.
OWNERS = gl.constexpr(16)
#: How often an owner looks whether the others have come, about a microsecond each time.
PATIENCE = gl.constexpr(64)


@aggregate
class Parts:
    """The workspace: the partial sums, and a counter for each sum."""

    sums_ptr: Value
    counters_ptr: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def reduce(self, acc, out, unit, place, WHICH: gl.constexpr, SLAB: gl.constexpr):
        """Deposit a part's sums, of which those at `place` consist; store the share of these that
        this consumer adds up."""
        PARTS: gl.constexpr = self.SHAPE.SPLIT_K
        ROWS: gl.constexpr = self.SHAPE.ROWS
        EPI_N: gl.constexpr = self.SHAPE.EPI_N
        SIZE: gl.constexpr = ROWS * acc_columns(acc)
        PIECES: gl.constexpr = acc_columns(acc) // EPI_N
        IN_SLAB: gl.constexpr = self.SHAPE.BLOCK_N // EPI_N
        sums = self.sums_ptr + gl.cast(place, gl.int64) * (PARTS * SIZE)
        deposit(sums + unit.part * SIZE, acc, EPI_N)
        SHARES: gl.constexpr = shares(PIECES, PARTS, self.SHAPE.TOGETHER)
        word = self.counters_ptr + place
        if SHARES > 1:
            mine = arrive_owner(word, unit.part, PARTS, SHARES)
        else:
            mine = arrive_last(word, PARTS).to(gl.int32)
        for i in range(PIECES):
            if mine >> i % SHARES & 1:
                piece = add_parts(sums, i, PARTS, ROWS, SIZE // ROWS, EPI_N)
                row = (SLAB + i // IN_SLAB) * ROWS
                out.store_pieces((piece,), unit, row, i % IN_SLAB * EPI_N, WHICH)


@gluon.jit
def _offsets(acc):
    """Where each element of `acc` stands in its partial sum: 8 x 8 blocks, one row after another.

    So the lanes of a warp, which hold 8 rows of 8 columns, write and read 256 bytes in a row.
    """
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))[:, None]
    cols = gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))[None, :]
    return (rows // 8) * (8 * acc.shape[1]) + (cols // 8) * 64 + (rows % 8) * 8 + cols % 8


@gluon.jit
def deposit(ptr, acc, EPI_N: gl.constexpr):
    """Write partial sums at `ptr`, `EPI_N` columns at a time."""
    for i in gl.static_range(acc_columns(acc) // EPI_N):
        piece = columns_of(acc, i, EPI_N)
        gl.store(ptr + i * (piece.shape[0] * EPI_N) + _offsets(piece), piece)


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
