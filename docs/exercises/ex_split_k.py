"""Into how many parts should K be cut?

A product has `tiles` tiles of `steps` steps of K each, and `sms` SMs with one program each. With
`parts` parts there are tiles * parts units of work of steps / parts steps, and program p has the
units p, p + sms, p + 2 sms and so on. If there is more than one part, writing and adding the
partial sums takes as long as `cost` steps for each part. The product takes the time of the steps of
its busiest program, plus that cost. Which number of parts takes the least time? Consider only
numbers that divide `steps`; if several are equally good, return the smallest.
"""

from docs.pictures.split import busiest, split_k

from . import Answer, same

#: Tiles, steps, SMs, cost.
CASES = (
    (2, 48, 16, 0), (2, 48, 16, 1), (2, 48, 16, 3), (9, 24, 12, 0), (9, 24, 12, 1), (17, 60, 16, 0),
    (17, 60, 16, 1), (16, 60, 16, 1), (1, 64, 16, 2), (5, 36, 12, 1), (40, 16, 12, 0),
    (2, 48, 16, 20),
)  # fmt: skip


def answer(tiles: int, steps: int, sms: int, cost: int) -> int:
    def time(parts: int) -> int:
        rounds = -(-tiles * parts // sms)
        return rounds * (steps // parts) + (cost * parts if parts > 1 else 0)

    return min((parts for parts in range(1, steps + 1) if steps % parts == 0), key=time)


def check(function: Answer) -> None:
    """Against every number of parts, dealt out by the kernels' scheduler."""
    for tiles, steps, sms, cost in CASES:
        times = {
            parts: busiest(split_k(tiles, steps, parts, sms)) + (cost * parts if parts > 1 else 0)
            for parts in range(1, steps + 1)
            if steps % parts == 0
        }
        best = min(times, key=times.get)
        same(function, best, tiles=tiles, steps=steps, sms=sms, cost=cost)
