"""A producer and a consumer with a ring of stages between them, played out in plain Python.

Each role runs in a thread, and one of them or TMA at a time takes a step, in many orders. So a hang
is seen when nobody can take one, and a read shows whose tile a stage holds.
"""

import dataclasses
import random
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from docs.exercises import Wrong

from .checker import WATCHDOG, explained, line_of
from .machine import plain

#: Orders that are tried, and who comes first in the first of them; the others are random.
ORDERS = 12
FIRST = (("add", "TMA", "load"), ("add", "load", "TMA"), ("load", "TMA", "add"))
ROWS, BYTES = 64, 64 * 64 * 2


class _Over(Exception):
    """Ends a role's thread when the play is over."""


@dataclasses.dataclass
class Barrier:
    """An mbarrier that takes one arrival, and the bytes that it is told to expect."""

    name: str
    phases: int = 0
    arrivals: int = 1
    bytes: int = 0

    def settle(self) -> None:
        if self.arrivals <= 0 and self.bytes <= 0:
            self.phases, self.arrivals = self.phases + 1, 1


@dataclasses.dataclass
class Role:
    """A thread, and what it waits for."""

    name: str
    turn: threading.Semaphore
    may_go: Callable[[], bool] = lambda: True
    doing: str = ""
    ended: bool = False


class Play:
    """One order of events; `run` raises `Wrong` if something goes wrong in it."""

    def __init__(self, file: str, stages: int, steps: int, order: int):
        self._file, self._stages, self._steps, self._order = file, stages, steps, order
        self._dice, self._over = random.Random(order), False
        self._taken, self._error = threading.Semaphore(0), None
        self._flying: list[tuple[int, int, Barrier]] = []
        self._holds: list[int | None] = [None] * stages
        self._read = 0
        self._me = threading.local()
        self.full, self.empty = ([Barrier(f"{name}[{i}]") for i in range(stages)]
                                 for name in ("full", "empty"))  # fmt: skip

    def wrong(self, sentence: str) -> Wrong:
        return Wrong(f"{line_of(self._file)}, with {_stages(self._stages)}: {sentence}")

    def step(self, waiting: str = "", may_go: Callable[[], bool] = lambda: True) -> None:
        """A role waits for its turn, which it gets only if it `may_go` on."""
        role = self._me.role
        role.doing = f"`{role.name}` waits in {line_of(self._file).lower()} {waiting}"
        role.may_go = may_go
        self._taken.release()
        role.turn.acquire()
        if self._over:
            raise _Over

    # What the roles call

    def wait(self, bar: Barrier, parity: int, *_: Any, **__: Any) -> None:
        if parity not in (0, 1):
            raise self.wrong(f"the parity is {parity}; it should be 0 or 1.")
        done = "1 phase is" if bar.phases == 1 else f"{bar.phases or 'no'} phases are"
        waiting = f"for parity {int(parity)} of {bar.name}, of which {done} complete"
        self.step(waiting, lambda: bar.phases % 2 != parity)

    def arrive(self, bar: Barrier, *_: Any, **__: Any) -> None:
        self.step()
        bar.arrivals -= 1
        bar.settle()

    def expect(self, bar: Barrier, count: int, *_: Any, **__: Any) -> None:
        self.step()
        bar.arrivals, bar.bytes = bar.arrivals - 1, bar.bytes + count
        bar.settle()

    def load(self, desc: Any, corner: list[int], bar: Barrier, stage: Any, *_: Any) -> None:
        self.step()
        self._flying.append((corner[0] // ROWS, stage.number, bar))

    def read(self, number: int) -> int:
        self.step()
        want, holds = self._read, self._holds[number]
        self._read += 1
        if holds == want:
            return 0
        what = f"step {want} is read from stage {number}"
        if holds is None:
            raise self.wrong(f"{what} before anything has arrived there.")
        if holds < want:
            raise self.wrong(f"{what}, which still holds step {holds}: its copy hasn't arrived.")
        raise self.wrong(f"{what}, but step {holds} has overwritten it.")

    # What happens

    def run(self, roles: dict[str, Callable[[], None]]) -> None:
        own = [Role(name, threading.Semaphore(0)) for name in roles]
        for role in own:
            arguments = (role, roles[role.name])
            threading.Thread(target=self._play, args=arguments, daemon=True).start()
            self._taken.acquire()  # its first call, or its end
        while self._error is None and not all(role.ended for role in own):
            able = {role.name: role for role in own if not role.ended and role.may_go()}
            if self._flying:
                able["TMA"] = None
            if not able:
                self._error = self._hang([role for role in own if not role.ended])
                break
            self._advance(able)
        self._over = True
        for role in own:
            role.turn.release()
        if self._error is not None:
            raise self._error
        if self._read != self._steps:
            raise Wrong(f"Of {self._steps} steps, {self._read} are read.")

    def _advance(self, able: dict[str, Role | None]) -> None:
        """One of those who can takes a step."""
        if self._order < len(FIRST):
            name = next(name for name in FIRST[self._order] if name in able)
        else:
            name = self._dice.choice(sorted(able))
        if (role := able[name]) is not None:
            role.turn.release()
            self._taken.acquire()
            return
        step, stage, bar = self._flying.pop(0)
        self._holds[stage] = step
        bar.bytes -= BYTES
        bar.settle()

    def _play(self, role: Role, function: Callable[[], None]) -> None:
        self._me.role = role
        try:
            function()
        except _Over:
            return
        except Exception as error:
            self._error = explained(self._file, error)
        role.ended = True
        self._taken.release()

    def _hang(self, waiting: list[Role]) -> Wrong:
        doing = ", and ".join(role.doing for role in waiting)
        return Wrong(f"With {_stages(self._stages)} the kernel hangs: {doing}.")


def _stages(count: int) -> str:
    return "a single stage" if count == 1 else f"{count} stages"


def play(module: ModuleType, stages: int, steps: int) -> None:
    """`Wrong` if the file's `load` and `add` go wrong with such a ring, in some order."""
    for order in range(ORDERS):
        one = Play(module.__file__, stages, steps, order)
        memory = SimpleNamespace(
            shape=(stages, ROWS, ROWS),
            index=lambda i, one=one: SimpleNamespace(number=i, load=lambda layout: one.read(i)),
        )
        full, empty = (SimpleNamespace(index=bars.__getitem__) for bars in (one.full, one.empty))
        desc = SimpleNamespace(block_type=SimpleNamespace(nbytes=BYTES, shape=[ROWS, ROWS]))
        ring = (memory, full, empty, steps, stages)
        names = {
            "mbarrier": SimpleNamespace(wait=one.wait, arrive=one.arrive, expect=one.expect),
            "async_load": one.load, "fence_async_shared": lambda: None, "gl": _Language(),
        }  # fmt: skip
        load, add = (plain(module, name, **names) for name in ("load", "add"))
        with WATCHDOG.limited():
            one.run({
                "load": lambda load=load, desc=desc, ring=ring: load(desc, *ring),
                "add": lambda add=add, ring=ring: add(0, *ring),
            })  # fmt: skip


class _Anything:
    """An offset, a layout or a sum, of which nobody asks what it is."""

    def _same(self, *_: Any, **__: Any) -> "_Anything":
        return self

    __call__ = __getitem__ = __getattr__ = __add__ = __radd__ = __mul__ = __rmul__ = _same


class _Language(_Anything):
    """`gl`, of which only these matter."""

    constexpr, static_range = int, range
