"""When is the last tile stored?

A program of `pingpong` has `tiles` tiles and two consumers: one takes the tiles 0, 2, 4 and so on,
the other 1, 3, 5. A tile takes `multiply` cycles of products and then `store` cycles to store,
before its consumer can begin another tile. The consumers take turns at the products, tile after
tile in order, and only one multiplies at a time. While one stores, the other may multiply. All
operands arrive in time. After how many cycles has the last tile been stored? One consumer alone
would take tiles * (multiply + store).
"""

from . import Answer, same
from .turns import last_stored

#: Cycles of a tile's products and of its store.
TIMES = ((1000, 400), (1000, 1000), (1000, 1500), (500, 2000))


def answer(tiles: int, multiply: int, store: int) -> int:
    turn = 0  # when the products of the tile before are done
    free = [0, 0]  # when each consumer has stored its last tile
    for tile in range(tiles):
        turn = max(turn, free[tile % 2]) + multiply
        free[tile % 2] = turn + store
    return max(free)


def check(function: Answer) -> None:
    """Against the consumers' own source, run by a clock."""
    for multiply, store in TIMES:
        for tiles in (1, 2, 3, 4, 7, 8):
            want = last_stored(tiles, multiply, store)
            same(function, want, tiles=tiles, multiply=multiply, store=store)
