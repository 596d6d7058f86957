"""How deep must the ring be?

In a ring of `stages` buffers, step i of `async_stages` does the first half of its products, issues
the copies of step i + stages - 1, waits until those of step i + 1 have arrived, and does the second
half. Before the first step, the loop issues the copies of steps 0 to stages - 2, and waits for
those of step 0. Copies arrive `load` cycles after they are issued, however many are in flight, and
the products of a step take `multiply` cycles. What is the smallest number of stages, 2 or more,
with which no step waits?
"""

from . import Answer, same
from .loops import cycles

TIMES = ((1300, 700), (600, 1000), (1000, 1000), (1001, 1000), (2000, 700), (3500, 700), (80, 1000))


def answer(load: int, multiply: int) -> int:
    steps_ahead = -(-load // multiply)  # rounded up
    return 2 + steps_ahead


def check(function: Answer) -> None:
    """Against the rung's own loop, run with a clock, in deeper and deeper rings."""
    for load, multiply in TIMES:
        stages = 2
        while True:
            steps = 4 * stages
            if cycles("async_stages", steps, load, multiply, stages) == load + steps * multiply:
                break
            stages += 1
        same(function, stages, load=load, multiply=multiply)
