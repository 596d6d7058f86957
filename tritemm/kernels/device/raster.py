"""The order in which programs take the tiles of a product, and its batches."""

import triton
import triton.language as tl

#: Columns of tiles in one stripe of the serpentine order.
STRIPE = tl.constexpr(16)


@triton.jit
def split_batch(pid, M, N, B1, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BATCHED: tl.constexpr):  # fmt: skip
    """Program `pid` as a tile of one product and the pair of batch indices it belongs to."""
    b0 = 0
    b1 = 0
    if BATCHED:
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        b0 = pid // tiles // B1
        b1 = pid // tiles % B1
        pid = pid % tiles
    return pid, b0, b1


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
