"""How many cycles a rung's loop over K takes, if only its copies and its products take time.

The rung's own function is called, as Python, with a clock in place of the helpers that copy, wait
and multiply. So the order of the three is the kernel's.

- Copies of a step begin when they are committed, and have arrived `load` cycles later. Those of
  several steps may be in flight together. Copies of what lies past K take no time.
- A wait for all but the newest n groups lasts until the others have arrived.
- The products of a step take `multiply` cycles, and those of half a step half of them.
"""

import types
from types import SimpleNamespace
from typing import Any

from tritemm.rungs import find

#: Elements of K in a step.
BLOCK_K = 32


class Clock:
    """The time; of each group of copies (begin, end), and of products (step, begin, end).

    And which buffer each group fills, which one each step multiplies, and which groups are in
    flight when each wait begins, as far as earlier waits tell.
    """

    def __init__(self, load: int, multiply: int):
        self.now, self._depth = 0, 0
        self.copies: list[tuple[int, int]] = []
        self.products: list[tuple[int, int, int]] = []
        self.filled: list[int] = []
        self.multiplied: list[int] = []
        self.flying: list[list[int]] = []
        self._load, self._multiply, self._copies = load, multiply, False
        self._to = self._arrived = 0

    def copy(self, to: int, left: int) -> None:
        self._copies |= left > 0
        self._to = to

    def commit(self) -> None:
        self.copies.append((self.now, self.now + self._load * self._copies))
        self.filled.append(self._to)
        self._copies = False

    def wait(self, pending: int) -> None:
        self.flying.append(list(range(self._arrived, len(self.copies))))
        self._arrived = max(self._arrived, len(self.copies) - pending)
        waited = self.copies[: max(len(self.copies) - pending, 0)]
        self.now = max([self.now, *(end for _, end in waited)])

    def fragments(self, buffer: int, k: int, depth: int) -> tuple[int, int]:
        if k == 0:  # the first of the step
            self.multiplied.append(buffer)
        return depth, depth

    def multiply(self, depth: int) -> None:
        """`depth` elements of K."""
        assert self._multiply * depth % BLOCK_K == 0
        begin = self.now
        self.now += self._multiply * depth // BLOCK_K
        self.products.append((self._depth // BLOCK_K, begin, self.now))
        self._depth += depth


def cycles(rung: str, steps: int, load: int, multiply: int, stages: int = 1) -> int:
    """From the first copy to the last product; see `run`."""
    return run(rung, steps, load, multiply, stages).now


def run(rung: str, steps: int, load: int, multiply: int, stages: int = 1) -> Clock:
    """One program's clock after its loop. `multiply` is even; `steps` is a multiple of two, and of
    `stages` in the rung that has a ring."""
    clock = Clock(load, multiply)
    function = find(rung).fn.fn
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    known = {
        "M": 256, "N": 128, "K": steps * BLOCK_K, "BLOCK_M": 256, "BLOCK_N": 128,
        "BLOCK_K": BLOCK_K, "STAGES": stages,
    }  # fmt: skip
    types.FunctionType(code, _language(clock))(*(known.get(name, 0) for name in names))
    return clock


def _language(clock: Clock) -> dict[str, Any]:
    """What the rungs' functions name, with the clock behind it."""

    def nothing(*_: Any) -> None:
        return None

    memory = SimpleNamespace(index=int)
    helpers = SimpleNamespace(
        DEPTH=16, batch_ptr=nothing, tile_ptrs=nothing, next_step=nothing, zeros=nothing,
        barrier=nothing, store_tile=nothing,
        tile_memory=lambda *_: memory, tile_ring=lambda ptr, stages, *_: tuple(range(stages)),
        copy_tile=lambda to, ptrs, left, *_: clock.copy(to, left),
        cp_async_commit=clock.commit, cp_async_wait=clock.wait,
        fragments=lambda a, b, k, depth: clock.fragments(a, k, depth),
        mma_v2=lambda a, b, acc: clock.multiply(a),
        multiply=lambda a, b, acc: clock.multiply(*clock.fragments(a, 0, BLOCK_K)[:1]),
    )  # fmt: skip
    return {
        "mma": helpers, "range": range, "widen": lambda x, wide: x,
        "split_batch": lambda pid, *_: (pid, 0, 0), "raster": lambda *_: (0, 0),
        "gl": SimpleNamespace(program_id=lambda axis: 0, static_range=range, constexpr=int),
    }  # fmt: skip
