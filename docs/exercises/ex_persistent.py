"""What does a persistent program save?

Each of `sms` SMs has room for one program. The products of a tile take the same number of cycles
for every tile, and after them the program's warps store the tile in `store` cycles. Before the
first product of a tile, the program must ask for its first loads, which arrive `latency` cycles
later. In `tma` a program has one tile. It asks when it starts, and the next program starts when it
has stored. In `persistent`, program p has the tiles p, p + sms, p + 2 sms and so on. It asks for a
tile's first loads when the products of the tile before end, so that they are in flight while it
stores. How many cycles earlier is the last of `tiles` tiles stored?
"""

from docs.pictures.split import split_k

from . import Answer, same

#: Cycles of a tile's products.
PRODUCTS = 5000
#: Tiles, SMs, latency, store.
CASES = (
    (132, 132, 1000, 600), (133, 132, 1000, 600), (264, 132, 600, 1000), (512, 132, 800, 800),
    (512, 132, 900, 2000), (7, 8, 1000, 600), (40, 8, 1000, 600), (43, 8, 300, 700),
)  # fmt: skip


def answer(tiles: int, sms: int, latency: int, store: int) -> int:
    rounds = -(-tiles // sms)
    return (rounds - 1) * min(latency, store)


def check(function: Answer) -> None:
    """Against the tiles that the kernels' scheduler gives to each program, one after another."""
    for tiles, sms, latency, store in CASES:
        counts = [len(own) for own in split_k(tiles, 1, 1, min(sms, tiles))]
        one_each = max(stored(count, latency, store, ahead=False) for count in counts)
        persistent = max(stored(count, latency, store, ahead=True) for count in counts)
        arguments = {"tiles": tiles, "sms": sms, "latency": latency, "store": store}
        same(function, one_each - persistent, **arguments)


def stored(count: int, latency: int, store: int, ahead: bool) -> int:
    """When an SM has stored the last of so many tiles, by the rules of the question."""
    asked = free = 0  # when the next tile is asked for, and when the warps are free for it
    for _ in range(count):
        multiplied = max(asked + latency, free) + PRODUCTS
        free = multiplied + store
        asked = multiplied if ahead else free
    return free
