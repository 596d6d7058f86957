"""In which order do programs take the tiles?

C has `tiles_m` x `tiles_n` tiles, one for each program. Programs with neighbouring numbers run at
the same time, so they should share what they read of A and B in the L2 cache. In the grouped order,
programs walk down GROUP_M rows of tiles, then move on to the next column; after the last column
they continue with the next GROUP_M rows. The last group may have fewer rows. This kernel does not
multiply: each program writes its number at its tile, which shows the order. As given, the programs
walk along the rows. Make them follow the grouped order.
"""

import triton
import triton.language as tl

from .checker import INTEGER, Matrix, Wrong, launch


@triton.jit
def order_kernel(order_ptr, tiles_m, tiles_n, stride_m, GROUP_M: tl.constexpr):
    pid = tl.program_id(0)
    # --- your part: the row and the column of this program's tile
    width = GROUP_M * tiles_n  # tiles of a whole group
    first = pid // width * GROUP_M  # of the group's rows
    rows = tl.minimum(tiles_m - first, GROUP_M)
    pid_m = first + pid % width % rows
    pid_n = pid % width // rows
    # --- to start from
    #| pid_m = pid // tiles_n
    #| pid_n = pid % tiles_n
    # --- end
    tl.store(order_ptr + pid_m * stride_m + pid_n, pid)


# --- the check
HINT = """
A full group has GROUP_M * tiles_n tiles, so `pid // (GROUP_M * tiles_n)` is the number of a
program's group. All groups before it are full. How many rows does its own group have? Within the
group, the remainder of a division by that number gives the row, and the quotient gives the column.
"""
#: Tiles down and across, and rows of a group.
GRIDS = ((8, 8, 4), (7, 5, 4), (5, 3, 2), (2, 6, 8), (1, 4, 4), (9, 4, 1))
#: A wave of as many programs as an SM each, in a grid of so many tiles.
WAVE, LARGE = 16, (16, 16, 4)


def check(module):
    for tiles_m, tiles_n, group in (LARGE, *GRIDS):
        order = ordered(module, tiles_m, tiles_n, group)
        in_groups(order, tiles_m, tiles_n, group)


def ordered(module, tiles_m, tiles_n, group):
    """The number of the program that each tile belongs to."""
    order = Matrix("order", (tiles_m, tiles_n), INTEGER)
    stride = order.tensor.stride(0)

    def cause(looker, pid):
        rows, tile = grouped(pid, tiles_m, tiles_n, group)
        fewer = f" The last group has only {counted(rows, 'row')}." if rows < group else ""
        return f"It should have tile {tile}.{fewer}"

    launch(module, "order_kernel", (tiles_m * tiles_n,), order, tiles_m, tiles_n, stride,
           case=cased(tiles_m, tiles_n, group), cause=cause, GROUP_M=group)  # fmt: skip
    return order.tensor.tolist()


def cased(tiles_m, tiles_n, group):
    return f"{tiles_m} x {tiles_n} tiles and GROUP_M = {group}"


def counted(count, what):
    """`1 row`, `2 rows`."""
    return f"{count} {what}{'s' * (count != 1)}"


def grouped(pid, tiles_m, tiles_n, group):
    """How many rows a program's group has, and the program's tile."""
    first = pid // (group * tiles_n) * group
    rows = min(group, tiles_m - first)
    return rows, (first + pid % (group * tiles_n) % rows, pid % (group * tiles_n) // rows)


def in_groups(order, tiles_m, tiles_n, group):
    """`Wrong` where a wave reads more than in the grouped order, or the order is another."""
    case = f"With {cased(tiles_m, tiles_n, group)}"
    place = {pid: (row, col) for row, line in enumerate(order) for col, pid in enumerate(line)}
    if (tiles_m, tiles_n, group) == LARGE:
        tiles = [place[pid] for pid in range(WAVE) if pid in place]
        rows, cols = len({row for row, _ in tiles}), len({col for _, col in tiles})
        least = group + WAVE // group
        if rows + cols > least:
            raise Wrong(
                f"{case} the first {WAVE} programs need {counted(rows, 'row')} of tiles of A and "
                f"{counted(cols, 'column')} of B, {rows + cols} together; in the grouped order "
                f"they need {least}."
            )
    for pid in range(tiles_m * tiles_n):
        if pid not in place:
            raise Wrong(f"{case} program {pid} stores nothing.")
        _, want = grouped(pid, tiles_m, tiles_n, group)
        if place[pid] != want:
            raise Wrong(f"{case} program {pid} has tile {place[pid]}; it should have {want}.")
