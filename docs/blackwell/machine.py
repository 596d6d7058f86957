"""Roles of programs that run in an order drawn by chance, and what they wait for."""

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any


class Fault(Exception):
    """What a kernel does wrong, in some order of events."""


@dataclasses.dataclass
class Barrier:
    """An mbarrier: a phase is complete when all have arrived and all bytes are there."""

    count: int = 0
    arrived: int = 0
    missing: int = 0
    phases: int = 0

    def add(self, arrivals: int = 0, missing: int = 0) -> None:
        self.arrived += arrivals
        self.missing += missing
        if self.arrived > self.count:
            raise Fault(f"{self.arrived} arrivals at a barrier of {self.count}")
        if self.arrived == self.count and self.missing == 0:
            self.arrived, self.phases = 0, self.phases + 1

    def passes(self, parity: int) -> bool:
        return self.phases % 2 != parity


@dataclasses.dataclass
class Actor:
    """A role of a program, in a thread of its own that runs only when it is told to.

    `stores` are its stores by TMA, in order, whether each has landed; `fenced` says whether there
    was a fence since it last wrote to shared memory.
    """

    cluster: int
    cta: int
    body: Callable[[], None]
    ready: Callable[[], bool] = lambda: True
    told: threading.Semaphore = dataclasses.field(default_factory=lambda: threading.Semaphore(0))
    over: bool = False
    fenced: bool = True
    stores: list[list[bool]] = dataclasses.field(default_factory=list)


class Machine:
    """A grid of clusters, of which `room` run at once.

    `flying` lands in any order; `products` of a cluster are computed in the order of their issue.
    Both may be quick or slow, compared with the roles: chance decides which, once for all.
    """

    def __init__(self, clusters: int, room: int, seed: int):
        self.clusters, self.room, self.chance = clusters, room, random.Random(seed)
        self.haste = self.chance.choice((1, 0.1, 0.01))
        self.actors: list[Actor] = []
        self.flying: list[Callable[[], None]] = []
        self.products: dict[int, list[Callable[[], None]]] = {}
        self.begun = self.launched = self.events = 0
        self.fault: Exception | None = None
        self.back = threading.Semaphore(0)
        self.now: Any = None

    def run(self, launch: Callable[[int], None]) -> None:
        """Let one thing happen after another until nothing can; `launch` begins a cluster."""
        while able := self.able():
            chosen = self.chance.choice(able)
            self.events += 1
            if chosen is self:
                self.launched += 1
                launch(self.next_cluster())
            elif isinstance(chosen, Actor):
                self.now = chosen
                chosen.told.release()
                self.back.acquire()
                if self.fault:
                    raise self.fault
            elif isinstance(chosen, list):
                chosen.pop(0)()
            else:
                self.flying.remove(chosen)
                chosen()
        if waiting := [actor for actor in self.actors if not actor.over]:
            raise Fault(f"{len(waiting)} of {len(self.actors)} roles wait for ever")

    def able(self) -> list[Any]:
        """What can happen: a launch, a role that goes on, what lands, a product."""
        room = self.begun < self.clusters and self.launched < self.room
        roles = [actor for actor in self.actors if not actor.over and actor.ready()]
        able = [*[self] * room, *roles]
        if not able or self.chance.random() < self.haste:
            able += [*self.flying, *filter(None, self.products.values())]
        return able

    def next_cluster(self) -> int:
        """The next of the grid, which is launched or whose launch is cancelled; -1 if none is."""
        self.begun = min(self.begun + 1, self.clusters + 1)
        return self.begun - 1 if self.begun <= self.clusters else -1

    def start(self, cluster: int, cta: int, body: Callable[[], None]) -> None:
        """Add a role to those that run."""
        actor = Actor(cluster, cta, body)

        def live() -> None:
            actor.told.acquire()
            try:
                actor.body()
            except Exception as fault:
                self.fault = self.fault or fault
            actor.over = True
            self.back.release()

        self.actors.append(actor)
        threading.Thread(target=live, daemon=True).start()

    def turn(self, ready: Callable[[], bool] = lambda: True) -> Actor:
        """Let others go first, at least until the role that says this is `ready`; return it."""
        actor = self.now
        actor.ready = ready
        self.back.release()
        actor.told.acquire()
        if self.fault:
            raise self.fault
        return actor

    def end(self) -> None:
        """End the threads of roles that wait."""
        self.fault = self.fault or Fault("stopped")
        for actor in self.actors:
            if not actor.over:
                actor.told.release()
                self.back.acquire()
