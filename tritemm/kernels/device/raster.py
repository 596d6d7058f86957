"""The order in which programs take the tiles of a product, its batches, and its groups."""

import triton
import triton.language as tl

#: Columns of tiles in one stripe of the serpentine order.
STRIPE = tl.constexpr(16)
#: Groups that are counted at a time.
SOME = tl.constexpr(256)


@triton.jit
def tiles_of(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TRIANGULAR: tl.constexpr):
    """Number of tiles of one product; for a triangular one, in the squares of `triangular`."""
    if TRIANGULAR:
        SQUARE: tl.constexpr = square_of(BLOCK_M, BLOCK_N)
        count = tl.cdiv(N, SQUARE[0])
        tiles = count * (count + 1) // 2 * (SQUARE[1] * SQUARE[2])
    else:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    return tiles


@triton.jit
def split_batch(pid, M, N, B1, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BATCHED: tl.constexpr, TRIANGULAR: tl.constexpr = False):  # fmt: skip
    """Program `pid` as a tile of one product and the pair of batch indices it belongs to."""
    b0 = 0
    b1 = 0
    if BATCHED:
        tiles = tiles_of(M, N, BLOCK_M, BLOCK_N, TRIANGULAR)
        b0 = pid // tiles // B1
        b1 = pid // tiles % B1
        pid = pid % tiles
    return pid, b0, b1


@triton.jit
def bounds(offs_ptr, group, count, size):
    """Where a group begins and ends in the cut dimension; group `count` is the rest."""
    begin = tl.load(offs_ptr + group - 1, mask=(group > 0) & (group <= count), other=size)
    begin = tl.where(group == 0, 0, begin)
    end = tl.load(offs_ptr + group, mask=group < count, other=size)
    begin = tl.minimum(tl.maximum(begin, 0), size)
    return begin, tl.minimum(tl.maximum(begin, end), size)


@triton.jit
def group_of(slot, offs_ptr, count, size, BLOCK: tl.constexpr):
    """The group of a slot, and the slots before it.

    Group g, from row `begin` on, has the slots from begin // BLOCK + g on: always enough for its
    tiles, and no sum over the groups before it.
    """
    group = 0
    for first in range(0, count + 1, SOME):
        g = first + tl.arange(0, SOME)
        begin, _ = bounds(offs_ptr, g, count, size)
        group += tl.sum(((g <= count) & (begin // BLOCK + g <= slot)).to(tl.int32))
    group -= 1
    begin, _ = bounds(offs_ptr, group, count, size)
    return group, begin // BLOCK + group


@triton.jit
def raster(pid, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
           ORDER: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """Tile coordinates of program `pid`.

    linear      row after row of tiles
    serpentine  stripes of 16 tile columns, walked row by row, odd stripes from the bottom up
    grouped     groups of GROUP_M tile rows, walked column by column
    """
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    if ORDER == "linear":
        pid_m = pid // num_n
        pid_n = pid % num_n
    elif ORDER == "serpentine":
        stripe = pid // (STRIPE * num_m)
        width = tl.minimum(num_n - stripe * STRIPE, STRIPE)
        inside = pid - stripe * STRIPE * num_m
        row = inside // width
        pid_m = tl.where(stripe % 2 == 1, num_m - 1 - row, row)
        pid_n = stripe * STRIPE + inside % width
    else:
        tl.static_assert(ORDER == "grouped", "ORDER is linear, serpentine or grouped")
        group = pid // (GROUP_M * num_n)
        height = tl.minimum(num_m - group * GROUP_M, GROUP_M)
        inside = pid - group * GROUP_M * num_n
        pid_m = group * GROUP_M + inside % height
        pid_n = inside // height
    return pid_m, pid_n


@triton.constexpr_function
def square_of(rows, columns):
    """Side of the smallest square of whole tiles, and how many of them it is high and wide."""
    longer, shorter = max(rows, columns), min(rows, columns)
    side = next(side for side in range(longer, longer * shorter + 1, longer) if side % shorter == 0)
    return side, side // rows, side // columns


@triton.jit
def triangular(pid, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
               ORDER: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """Tile coordinates of program `pid` in the squares on and below the diagonal.

    The triangle is folded into a rectangle, a short row after each long one, which is traversed in
    the raster `ORDER`.
    """
    SQUARE: tl.constexpr = square_of(BLOCK_M, BLOCK_N)
    DOWN: tl.constexpr = SQUARE[1]
    ACROSS: tl.constexpr = SQUARE[2]
    GROUP: tl.constexpr = (GROUP_M + DOWN - 1) // DOWN
    count = tl.cdiv(N, SQUARE[0])
    even = 1 - count % 2
    nth = pid // (DOWN * ACROSS)
    inside = pid % (DOWN * ACROSS)
    row, col = raster(nth, (count + 1) // 2, count + even, 1, 1, ORDER, GROUP)
    last = count - 1 - row
    folded = col > last
    square_m = tl.where(folded, row - 1 + even, last)
    square_n = tl.where(folded, col - last - 1, col)
    return square_m * DOWN + inside % DOWN, square_n * ACROSS + inside // DOWN
