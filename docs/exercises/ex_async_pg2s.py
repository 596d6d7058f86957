"""What does a second buffer save?

A step of `async_pg2s` waits until its own copies have arrived, issues the next step's copies, and
multiplies. Copies arrive `load` cycles after they are issued, the products of a step take
`multiply` cycles, and nothing else takes time. The copies that the last step issues lie past the
end of K: they read nothing and take no time. How many cycles do `steps` steps take, from the issue
of the first copies to the end of the last products?
"""

from . import Answer, same
from .loops import cycles

#: Copies that take longer than products, as long, and not as long.
TIMES = ((1300, 700), (900, 900), (500, 1000), (2000, 100))


def answer(steps: int, load: int, multiply: int) -> int:
    return load + (steps - 1) * max(load, multiply) + multiply


def check(function: Answer) -> None:
    """Against the rung's own loop, run with a clock."""
    for load, multiply in TIMES:
        for steps in (1, 2, 8, 128):
            want = cycles("async_pg2s", steps, load, multiply)
            same(function, want, steps=steps, load=load, multiply=multiply)
