"""The kernel's text executed by plain Python, since neither a GPU nor an interpreter of Gluon can.

Each word of Gluon has a stand-in on numpy arrays. Whenever a role says such a word, chance decides
what happens next: what some role does, or the end of a copy, a product or a question that is in
flight. What is written asynchronously is NaN from the request on, so that a stage that is filled or
read too early spoils C. Not modelled: swizzles, time, and the memory model, but for the fence
before a store by TMA.
"""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from docs.pictures import formulas

from .machine import Actor, Barrier, Fault, Machine
from .shape import ONE, PAIR, Shape

SOURCE = Path(__file__).with_name("kernel.py")
#: Both versions in tiles for which a model has time.
SMALL = tuple(
    dataclasses.replace(each, BLOCK_M=8, BLOCK_N=8, BLOCK_K=4, EPI_N=4, GROUP_M=2, STAGES=3)
    for each in (ONE, PAIR)
)
#: Bytes of an element of A, B and C, and of an answer.
ELEMENT, ANSWER = 2, 16


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """A matrix whose boxes TMA copies; of a pair, each program has half of a box's rows."""

    matrix: np.ndarray
    box: tuple[int, int]
    ctas: int
    dtype: str = "bf16"

    @property
    def layout(self) -> SimpleNamespace:
        return SimpleNamespace(cga_layout=[[1, 0]] if self.ctas > 1 else [])

    @property
    def nbytes_per_cta(self) -> int:
        return self.box[0] // self.ctas * self.box[1] * ELEMENT

    def part(self, corner: Sequence[int], cta: int) -> np.ndarray:
        """What program `cta` has of the box at a corner, as far as that is in the matrix."""
        rows = self.box[0] // self.ctas
        row, col = corner[0] + cta * rows, corner[1]
        return self.matrix[row : row + rows, col : col + self.box[1]]


@dataclasses.dataclass(frozen=True)
class View:
    """Shared or tensor memory: the part that each program of a cluster has of it."""

    parts: tuple[np.ndarray, ...]
    turn: Callable[[], Actor]

    def index(self, i: int) -> "View":
        return View(tuple(part[i] for part in self.parts), self.turn)

    def slice(self, start: int, length: int) -> "View":
        return View(tuple(part[:, start : start + length] for part in self.parts), self.turn)

    def permute(self, order: tuple[int, ...]) -> "View":
        return View(tuple(part.transpose(order) for part in self.parts), self.turn)

    def load(self) -> np.ndarray:
        return self.parts[self.turn().cta].copy()

    def store(self, piece: np.ndarray) -> None:
        actor = self.turn()
        actor.fenced = False
        self.parts[actor.cta][:] = piece


@dataclasses.dataclass(frozen=True)
class Barriers:
    """A ring of barriers: one of each program, or of the first one alone if they are `shared`."""

    parts: tuple[tuple[Barrier, ...], ...]
    shared: bool

    def index(self, i: int) -> "Barriers":
        return Barriers(tuple((part[i],) for part in self.parts), self.shared)

    def of(self, cta: int) -> Barrier:
        return self.parts[0 if self.shared else cta][0]

    def commit(self) -> None:
        """What the tensor core does at the barrier of each program."""
        for (bar,) in self.parts:
            bar.add(arrivals=1)


class Words:
    """What the kernel's text says of Gluon."""

    def __init__(self, machine: Machine, ctas: int):
        self.machine, self.turn, self.ctas = machine, machine.turn, ctas
        self.refused: set[int] = set()

    # Memory and barriers

    def memory(self, dtype: Any, shape: Sequence[int], layout: Any) -> View:
        split = self.ctas if any(any(basis) for basis in layout.cga_layout) else 1
        mine = [shape[0], shape[1] // split, *shape[2:]]
        return View(tuple(np.full(mine, np.nan) for _ in range(self.ctas)), self.turn)

    def layout(self, *_: Any, cga_layout: Any, **more: Any) -> SimpleNamespace:
        return SimpleNamespace(cga_layout=cga_layout)

    def allocate_mbarrier(self, count: int, two_ctas: bool) -> Barriers:
        parts = range(1 if two_ctas else self.ctas)
        return Barriers(tuple(tuple(Barrier() for _ in range(count)) for _ in parts), two_ctas)

    def init(self, bars: Barriers, count: int) -> None:
        for (bar,) in bars.parts:
            bar.count = count * (self.ctas if bars.shared else 1)

    def wait(self, bars: Barriers, parity: int) -> None:
        cta = self.turn().cta
        if cta == 0 or not bars.shared:  # of a shared one, only the first program waits
            self.turn(lambda: bars.of(cta).passes(parity))

    def expect(self, bars: Barriers, count: int) -> None:
        bars.of(self.turn().cta).add(arrivals=1, missing=count)

    def arrive(self, bars: Barriers) -> None:
        bars.of(self.turn().cta).add(arrivals=1)

    # TMA

    def async_load(self, desc: Descriptor, corner: Sequence[int], bars: Barriers, to: View) -> None:
        cta = self.turn().cta
        part = to.parts[cta]
        part[:] = np.nan

        def lands() -> None:
            found = desc.part(corner, cta)
            part[:] = 0  # beyond the matrix
            part[: found.shape[0], : found.shape[1]] = found
            bars.of(cta).add(missing=-part.size * ELEMENT)

        self.machine.flying.append(lands)

    def async_store(self, desc: Descriptor, corner: Sequence[int], view: View) -> None:
        actor = self.turn()
        if not actor.fenced:
            raise Fault("TMA reads what was stored without a fence")
        part, landed = view.parts[actor.cta], [False]

        def lands() -> None:
            to = desc.part(corner, actor.cta)
            if not np.isnan(to).all():
                raise Fault("a piece of C is stored twice")
            to[:] = part[: to.shape[0], : to.shape[1]]
            landed[0] = True

        actor.stores.append(landed)
        self.machine.flying.append(lands)

    def fence(self) -> None:
        self.turn().fenced = True

    def store_wait(self, pending: int) -> None:
        stores = self.turn().stores
        before = stores[: len(stores) - pending] if len(stores) > pending else []
        self.turn(lambda: all(landed for (landed,) in before))

    # The tensor core, which the first program tells what to do

    def mma(self, a: View, b: View, sums: View, use_acc: bool, mbarriers: list[Barriers]) -> None:
        actor = self.turn()
        if actor.cta > 0:
            return
        if any(np.isnan(part).any() for part in (*a.parts, *b.parts)):
            raise Fault("a product reads what isn't there yet")
        if not use_acc:
            for part in sums.parts:
                part[:] = np.nan

        def multiplies() -> None:
            columns = np.concatenate(b.parts, axis=1)
            for mine, part in zip(a.parts, sums.parts, strict=True):
                part[:] = mine @ columns + (part if use_acc else 0)
            for bars in mbarriers:
                bars.commit()

        self.machine.products.setdefault(actor.cluster, []).append(multiplies)

    def commit(self, bars: Barriers) -> None:
        actor = self.turn()
        if actor.cta == 0:
            self.machine.products.setdefault(actor.cluster, []).append(bars.commit)

    # Cluster launch control, which the first program asks

    def try_cancel(self, answer: View, bars: Barriers) -> None:
        actor = self.turn()
        if actor.cta > 0:
            return
        if actor.cluster in self.refused:
            raise Fault("a cluster asks again after it was told that no tile is left")
        for part in answer.parts:
            part[:] = np.nan

        def answers() -> None:
            found = self.machine.next_cluster()
            for cta, part in enumerate(answer.parts):
                part[:] = found
                bars.of(cta).add(missing=-ANSWER)

        self.machine.flying.append(answers)

    def load_result(self, answer: View) -> SimpleNamespace:
        found = answer.parts[self.turn().cta][0]
        if np.isnan(found):
            raise Fault("an answer is read that isn't there yet")
        if found < 0:
            self.refused.add(self.machine.now.cluster)

        def program_id(axis: int) -> int:
            if found < 0:
                raise Fault("an answer without a tile is asked for its tile")
            return int(found)

        return SimpleNamespace(is_canceled=lambda: found >= 0, program_id=program_id)

    def warp_specialize(self, roles: Any, warps: Any) -> None:
        for cta in range(self.ctas):
            for role, arguments in roles:
                body = lambda role=role, arguments=arguments: role(*arguments)  # noqa: E731
                self.machine.start(self.machine.begun - 1, cta, body)


def kernel(machine: Machine, ctas: int, text: str) -> Callable[..., None]:
    """`blackwell_kernel` of this text, said in these words."""
    say = Words(machine, ctas)
    names = formulas._language(0, machine.clusters)
    gl = SimpleNamespace(**vars(names["gl"]))
    gl.program_id, gl.num_ctas = lambda axis: machine.now.cluster, lambda: ctas
    gl.to_tensor, gl.int64, gl.float32 = lambda value: value, None, None
    gl.allocate_shared_memory, gl.SwizzledSharedLayout = say.memory, say.layout
    gl.warp_specialize = say.warp_specialize
    loop = formulas.module("mainloop")
    names |= {
        "__name__": __name__, "gl": gl, "mbarrier": say, "fence_async_shared": say.fence,
        "clc": say, "async_load": say.async_load, "async_store": say.async_store,
        "tma_store_wait": say.store_wait, "TensorMemoryLayout": say.layout,
        "allocate_tensor_memory": say.memory, "tcgen05_mma": say.mma, "tcgen05_commit": say.commit,
        "place": loop.place, "next_place": loop.next_place,
        "raster": formulas.module("raster").raster,
    }  # fmt: skip
    tree = formulas._Plain().visit(ast.parse(text))
    body = [each for each in tree.body if not isinstance(each, (ast.Import, ast.ImportFrom))]
    tree.body = [*ast.parse("from __future__ import annotations").body, *body]
    exec(compile(ast.fix_missing_locations(tree), SOURCE.name, "exec"), names)
    return names["blackwell_kernel"]


def run(shape: Shape, M: int, N: int, K: int, seed: int = 0, room: int = 2, text: str = "") -> str:
    """Multiply random integers, `room` clusters at a time, and say what was done.

    Raises Fault where the kernel waits for ever, reads or writes too early, or C isn't A @ B.mT.
    """
    values = np.random.default_rng(seed)
    a, b = (values.integers(-4, 5, size).astype(float) for size in ((M, K), (N, K)))
    c = np.full((M, N), np.nan)
    tiles = -(-M // shape.BLOCK_M) * -(-N // shape.BLOCK_N)
    machine = Machine(tiles if shape.CLC else min(room, tiles), room, seed)
    function = kernel(machine, shape.CTAS, text or SOURCE.read_text())
    depths = shape.BLOCK_K, shape.BLOCK_K, shape.EPI_N
    heights = shape.BLOCK_M, shape.BLOCK_N, shape.BLOCK_M
    descs = [
        Descriptor(matrix, (height, depth), shape.CTAS)
        for matrix, height, depth in zip((a, b, c), heights, depths, strict=True)
    ]
    try:
        machine.run(lambda cluster: function(*descs, M, N, K, shape))
    finally:
        machine.end()
    if not np.array_equal(c, a @ b.T):
        raise Fault(f"{np.sum(c != a @ b.T)} elements of C are wrong")
    return (
        f"{tiles} tiles, {machine.launched} of {machine.clusters} clusters launched, "
        f"{machine.events} events: C is right"
    )
