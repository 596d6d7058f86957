"""What a Gluon kernel's asynchronous copies may do, played out in plain Python.

Triton's interpreter has no Gluon. So the file's functions run as Python, with stand-ins for what
they use, which keep account of what was written and read, and compute nothing.
"""

import dataclasses
import types
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from docs.exercises import Wrong

from .checker import WATCHDOG, explained, found, line_of


def plain(module: ModuleType, name: str, **stand_ins: Any) -> Callable[..., Any]:
    """A jit function of the file as a Python function, in which other things have these names."""
    names = dict(vars(module)) | stand_ins
    for each, value in vars(module).items():
        if isinstance(code := getattr(value, "fn", None), types.FunctionType):
            names.setdefault(each, value)
            names[each] = types.FunctionType(
                code.__code__, names, each, code.__defaults__, code.__closure__
            )
    found(module, name)
    return names[name]


@dataclasses.dataclass
class Buffer:
    """A buffer of shared memory for a tile of one operand."""

    operand: str
    number: int
    #: The step whose tile was copied here last, and its group of copies.
    step: int | None = None
    group: int | None = None
    #: Whether the copy is known to have arrived: of this thread's part, and of all threads'.
    arrived: bool = False
    visible: bool = False
    #: Whether threads may still be reading it.
    read: bool = False

    def __str__(self) -> str:
        return f"buffer {self.number} of {self.operand}"


@dataclasses.dataclass(frozen=True)
class Tile:
    """Pointers to a tile: of which operand, and of which step of K."""

    operand: str
    step: int


class Copies:
    """The helpers `mma` of a kernel with `cp.async`, as one of several threads sees them."""

    def __init__(self, file: str, steps: int, depth: int):
        self._file, self._steps, self._depth = file, steps, depth
        self._buffers: list[Buffer] = []
        self._group = self._product = 0
        #: The group that the next copies belonged to at the last wait, and that wait's number.
        self._waited: tuple[int, int] | None = None
        #: What is said of the first products that no copies overlap with; "" if all do.
        self._idle = ""
        self._ended = False

    def stand_in(self) -> SimpleNamespace:
        return SimpleNamespace(
            tile_ptrs=lambda ptr, *_: Tile(ptr, 0),
            next_step=lambda tile, *_: dataclasses.replace(tile, step=tile.step + 1),
            tile_memory=self.memory, zeros=lambda *_: "sums", copy_tile=self.copy,
            cp_async_commit=self.commit, cp_async_wait=self.wait, barrier=self.barrier,
            multiply=self.multiply, store_tile=self.end,
        )  # fmt: skip

    def wrong(self, sentence: str) -> Wrong:
        steps = "a single step" if self._steps == 1 else f"{self._steps} steps"
        return Wrong(f"{line_of(self._file)}, with {steps} of K: {sentence}")

    def memory(self, operand: str, kind: str, stages: int, *_: Any) -> SimpleNamespace:
        own = [Buffer(operand, number) for number in range(stages)]
        self._buffers += own

        def index(number: int) -> Buffer:
            if number not in range(stages):
                raise self.wrong(f"there is no buffer {number} of {operand}, only {stages} in all.")
            return own[number]

        return SimpleNamespace(index=index)

    def copy(self, to: Buffer, tile: Tile, left: int, *_: Any) -> None:
        true = (self._steps - tile.step) * self._depth
        if tile.operand != to.operand:
            raise self.wrong(f"a tile of {tile.operand} is copied into {to}.")
        if max(true, 0) != max(left, 0):
            raise self.wrong(
                f"the copy of step {tile.step} is told that {left} elements of K remain; it should "
                f"be {true}."
            )
        if to.read:
            raise self.wrong(
                f"the copy of step {tile.step} goes into {to}, which other threads may still be "
                f"reading for step {to.step}: no barrier since."
            )
        if to.step is not None and not to.arrived:
            raise self.wrong(f"the copy of step {tile.step} goes into {to}, to which that of step "
                             f"{to.step} is still on its way.")  # fmt: skip
        to.step, to.group, to.arrived, to.visible = tile.step, self._group, False, False

    def commit(self) -> None:
        self._group += 1

    def wait(self, pending: int) -> None:
        self._waited = self._group, pending
        for each in self._buffers:
            if each.group is not None and each.group < self._group - pending:
                each.arrived = True

    def barrier(self) -> None:
        for each in self._buffers:
            each.read = False
            each.visible |= each.arrived

    def multiply(self, a: Buffer, b: Buffer, acc: Any) -> Any:
        for operand, each in zip("AB", (a, b), strict=True):
            if each.operand != operand:
                raise self.wrong(f"{each} is multiplied as a tile of {operand}.")
            self._read(each)
        more = self._product + 1 < self._steps
        flying = any(each.group is not None and not each.arrived for each in self._buffers)
        if more and not flying and not self._idle:
            self._idle = self._no_overlap()
        self._product += 1
        return acc

    def _no_overlap(self) -> str:
        """Why no copies are in flight while this step is multiplied, as a sentence."""
        following = self._product + 1
        issued = any(each.step == following for each in self._buffers)
        late = (
            f"the copies of step {following} have already arrived: the kernel waits for them too "
            "early" if issued else f"the copies of step {following} aren't issued yet: they come "
            "too late to overlap with the products"
        )  # fmt: skip
        where = f"{line_of(self._file)}, with {self._steps} steps of K"
        return f"{where}: the sums are right, but when step {self._product} is multiplied, {late}."

    def _why_in_flight(self, group: int) -> str:
        """Why a group of copies may not have arrived."""
        if group == self._group:
            return "its group isn't committed"
        if self._waited is None or self._waited[0] <= group:
            return "there is no wait after the commit of its group"
        newest = "group" if self._waited[1] == 1 else f"{self._waited[1]} groups"
        return (
            f"the last wait leaves its group in flight, because cp_async_wait({self._waited[1]}) "
            f"doesn't wait for the newest {newest}"
        )

    def _read(self, each: Buffer) -> None:
        what = f"step {self._product} is multiplied from {each}"
        if each.step != self._product:
            holds = "nothing has been copied" if each.step is None else f"holds step {each.step}"
            to = ", to which " if each.step is None else ", which "
            raise self.wrong(f"{what}{to}{holds}.")
        if not each.arrived:
            why = self._why_in_flight(each.group)
            raise self.wrong(f"{what} before its copy has arrived: {why}.")
        if not each.visible:
            raise self.wrong(
                f"{what} with no barrier after the wait. A thread waits for its own copies; those "
                "of the other threads may not have arrived."
            )
        each.read = True

    def end(self, *_: Any) -> None:
        if self._product != self._steps:
            raise self.wrong(f"{self._product} of them are multiplied.")
        if self._idle:
            raise Wrong(self._idle)
        self._ended = True


def play(module: ModuleType, name: str, depth: int, steps: int) -> None:
    """`Wrong` if a kernel with two buffers goes wrong in a product with so many steps of K."""
    copies = Copies(module.__file__, steps, depth)
    language = SimpleNamespace(program_id=lambda axis: 0, constexpr=int, float32="float32",
                               static_range=range)  # fmt: skip
    kernel = plain(module, name, mma=copies.stand_in(), gl=language)
    sizes = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": depth}
    with WATCHDOG.limited():
        try:
            kernel("A", "B", "C", 128, 128, steps * depth, *[0] * 3, **sizes)
        except Exception as error:
            raise explained(module.__file__, error) from error
    if not copies._ended:
        raise Wrong("The kernel ends without `mma.store_tile`.")
