"""Partial sums of SPLIT_K programs that share a tile's K: stored in a workspace, added in order.

The last program to arrive adds them all, or programs that run concurrently add a share each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import Value, aggregate, barrier
from .memory import acc_columns, mma_layout
from .subtile import pieces_of

#: The most partial sums whose loads are unrolled.
UNROLLED = gl.constexpr(16)
#: How often an owner checks whether the others have arrived, about a microsecond each time.
PATIENCE = gl.constexpr(64)

# The word through which programs arrive, 0 before and after: [taken:8 | owners:16 | arrived:8].
#: Programs that have arrived.
ARRIVED_MASK = gl.constexpr((1 << 8) - 1)
#: Owners that have left, a bit each; and the most owners there are.
OWNERS_SHIFT, OWNERS = gl.constexpr(8), gl.constexpr(16)
OWNERS_MASK = gl.constexpr((1 << 16) - 1)
#: Shares that someone adds.
TAKEN_SHIFT = gl.constexpr(24)


@aggregate
class SplitK:
    """The workspace: the partial sums, and a counter or word for each slab of a tile."""

    partials_ptr: Value
    counters_ptr: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def reduce(self, acc, out, unit, place, WHICH: gl.constexpr, SLAB: gl.constexpr):
        """Store the partial sums of a slab, number `place` among those of all tiles.

        Then finish this program's columns.
        """
        SPLIT_K: gl.constexpr = self.SHAPE.SPLIT_K
        ROWS: gl.constexpr = self.SHAPE.ROWS
        EPI_N: gl.constexpr = self.SHAPE.EPI_N
        SIZE: gl.constexpr = ROWS * acc_columns(acc)
        PIECES: gl.constexpr = acc_columns(acc) // EPI_N
        IN_SLAB: gl.constexpr = self.SHAPE.BLOCK_N // EPI_N
        partials = self.partials_ptr + gl.cast(place, gl.int64) * (SPLIT_K * SIZE)
        store_partials(partials + unit.split * SIZE, acc, self.SHAPE)
        SHARES: gl.constexpr = shares(PIECES, SPLIT_K, self.SHAPE.TOGETHER)
        word = self.counters_ptr + place
        if SHARES > 1:
            mine = arrive_owner(word, unit.split, SPLIT_K, SHARES)
        else:
            mine = arrive_last(word, SPLIT_K).to(gl.int32)
        for i in range(PIECES):
            if mine >> i % SHARES & 1:
                piece = add_partials(partials, i, SPLIT_K, ROWS, SIZE // ROWS, EPI_N)
                row = (SLAB + i // IN_SLAB) * ROWS
                out.store_pieces(((piece,),), unit, row, i % IN_SLAB * EPI_N, WHICH)


@gluon.jit
def _offsets(acc):
    """Offsets in the workspace: by 8 x 8 blocks, as a warp's lanes hold them, of 256 bytes each."""
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))[:, None]
    cols = gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))[None, :]
    return (rows // 8) * (8 * acc.shape[1]) + (cols // 8) * 64 + (rows % 8) * 8 + cols % 8


@gluon.jit
def store_partials(ptr, acc, SHAPE: gl.constexpr):
    """Write an accumulator at `ptr`, one piece after another."""
    pieces = pieces_of(acc, SHAPE)
    for i in gl.static_range(len(pieces)):
        (piece,) = pieces[i]
        gl.store(ptr + i * (SHAPE.ROWS * SHAPE.EPI_N) + _offsets(piece), piece)


@gluon.jit
def piece_offsets(piece, BLOCK_M: gl.constexpr, EPI_N: gl.constexpr):
    """Offsets of piece number `piece` of partial sums, in the accumulator's layout."""
    like = gl.zeros((BLOCK_M, EPI_N), gl.float32, mma_layout(EPI_N, gl.num_warps()))
    return piece * (BLOCK_M * EPI_N) + _offsets(like)


@gluon.jit
def add_partials(partials, piece, SPLIT_K: gl.constexpr, BLOCK_M: gl.constexpr,
                 BLOCK_N: gl.constexpr, EPI_N: gl.constexpr):  # fmt: skip
    """A piece summed over the programs in order; their partial sums are one after another."""
    where = piece_offsets(piece, BLOCK_M, EPI_N)
    total = gl.load(partials + where, cache_modifier=".cg")
    if SPLIT_K <= UNROLLED:
        for split in gl.static_range(1, SPLIT_K):
            total += gl.load(partials + split * (BLOCK_M * BLOCK_N) + where, cache_modifier=".cg")
    else:
        for split in range(1, SPLIT_K):
            total += gl.load(partials + split * (BLOCK_M * BLOCK_N) + where, cache_modifier=".cg")
    return total


@gluon.constexpr_function
def shares(pieces, programs, together):
    """Shares of a tile's pieces, each added by one program; one unless all run `together`."""
    return min(pieces, programs, OWNERS) if together else 1


@gluon.jit
def arrive_last(counter, COUNT):
    """Whether this consumer is the last of COUNT: it sees what all wrote; the counter is reset."""
    barrier()
    last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == COUNT - 1
    if last:
        gl.store(counter, 0)
    return last


@gluon.jit
def arrive_owner(word, split, SPLIT_K, SHARES):
    """The shares, a bit each, that program `split` of SPLIT_K adds.

    Programs below `SHARES` own one each, and wait for the others. Nothing guarantees that the
    others already run, so an owner that has checked `PATIENCE` times leaves its share to the last
    program that arrives. See the head of this file for the layout of `word`.
    """
    barrier()
    seen = gl.atomic_add(word, 1, sem="acq_rel", scope="gpu") + 1
    last = (seen & ARRIVED_MASK) == SPLIT_K
    own = gl.where(split < SHARES, 1 << gl.minimum(split, SHARES - 1), 0)
    looks = gl.to_tensor(0)
    if own != 0:
        while ((seen & ARRIVED_MASK) != SPLIT_K) & (looks < PATIENCE):
            seen = gl.atomic_add(word, 0, sem="acq_rel", scope="gpu")
            looks += 1
        if (seen & ARRIVED_MASK) != SPLIT_K:
            # If all have arrived by now, it stays.
            seen = gl.atomic_or(word, own << OWNERS_SHIFT, sem="acq_rel", scope="gpu")
    mine = gl.where((seen & ARRIVED_MASK) == SPLIT_K, own, 0)
    if last:
        mine |= (seen >> OWNERS_SHIFT) & OWNERS_MASK
    if mine != 0:
        count = _bits(mine)
        seen = gl.atomic_add(word, count << TAKEN_SHIFT, sem="acq_rel", scope="gpu")
        if (seen >> TAKEN_SHIFT) + count == SHARES:
            gl.store(word, 0)
    return mine


@gluon.jit
def _bits(mask):
    """The number of bits that are set."""
    return gl.inline_asm_elementwise(
        "popc.b32 $0, $1;", "=r,r", [mask], gl.int32, is_pure=True, pack=1
    )
