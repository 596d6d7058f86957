"""Races competitors: who may take part, how often, in which order; and what comes of it.

Nothing here knows a device. A `Bench` (`perf.bench` has those for CUDA graphs) estimates,
verifies and times; the engine refuses what is wrong, shuffles the rounds and writes the rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .machine import State
from .rows import NULL, REFERENCE, Heading, Row
from .stats import Quantiles, compare, ratios, standard_error

#: A replay longer than this, in seconds, takes part in every fourth round only.
SLOW = 0.3


@dataclasses.dataclass(frozen=True)
class Competitor:
    """One way to multiply: `run(a, b, c)` enqueues one product. `refusal` says why it can't.

    Where something follows the product, `run` gets the bias and the residual too, each None where
    there is none, then the bytes and scales of a weight of 4 bits, and returns the result: c, or a
    tensor of its own. With scales it gets A's and B's after c, and may return a tensor of its own
    too.
    `adds_to` is the rung of its ladder that it is compared with, if not the next one below, and
    `rivals` are more competitors to compare it with. `accumulate` is its accumulator where that
    is not the case's. `fault` says what its maker found wrong with its results. A rung is wrong
    beyond the error bound, and what is no rung beyond `slack` times it. In a race of groups what is
    `dense` multiplies as `operands.alone` has it. What is `split` multiplies planes or residues.
    """

    name: str
    run: Callable[..., Any]
    ladder: str | None = None
    rung: str | None = None
    number: int | None = None
    config: Mapping[str, Any] | None = None
    refusal: str | None = None
    adds_to: str | None = None
    rivals: tuple[str, ...] = ()
    accumulate: str | None = None
    fault: str | None = None
    slack: float = math.inf
    dense: bool = False
    split: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long to measure; times in seconds.

    With `most`, there are more rounds than `rounds`, up to so many, until each ratio's standard
    error is below `error`.
    """

    rounds: int = 30
    most: int | None = None
    error: float = 0.006
    replay: float = 0.1  # at least, per competitor and round
    lead: float = 0.1  # untimed, before each: the clock adapts to the competitor's power
    settle: float = 2.5  # at least, before the first round; 0: once through all is enough
    longest: float = 0.5  # per launch; what is slower is skipped


@dataclasses.dataclass(frozen=True)
class Sample:
    """Seconds per launch in one round, the card while it ran, and joules per launch if metered."""

    seconds: float
    state: State = dataclasses.field(default_factory=State)
    joules: float | None = None


@dataclasses.dataclass(frozen=True)
class Loop:
    """A competitor ready to run: `launches` products per replay, about `seconds` each.

    `replay` runs them, untimed; `time` runs and times them. `results` are what the launches over
    each set of operands leave, where that isn't in its c: None, or all of it is empty. `name` is
    whose work it is, where a bench needs that; `dense` and `split` as of the competitor.
    """

    launches: int
    seconds: float
    replay: Callable[[], None]
    time: Callable[[], Sample]
    results: Sequence[Any] = ()
    name: str = ""
    dense: bool = False
    split: bool = False

    @property
    def slow(self) -> bool:
        return self.launches * self.seconds > SLOW

    def every(self, rounds: int) -> int:
        """How many rounds apart it takes part; at least three times in `rounds`."""
        return max(1, min(4, rounds // 3)) if self.slow else 1


class Judgement(Protocol):
    """What `tritemm.budget.check` returns: `worst` is the largest error over its bound."""

    ok: bool
    worst: float


class Bench(Protocol):
    """A way to measure one `Case`. Exceptions from the first two are the competitor's failure."""

    mode: str

    def estimate(self, competitor: Competitor) -> float:
        """Compile, and return about how many seconds one launch takes."""

    def loop(self, competitor: Competitor) -> Loop:
        """Make it ready to be timed."""

    def recover(self) -> None:
        """After a failure: raise if the device can't go on."""

    def verify(self, loop: Loop, accumulate: str | None = None) -> Judgement:
        """Poison the outputs, replay, and compare every output element-wise with fp64.

        `accumulate`: judge by this accumulator's tolerance, not by that of the case's.
        """

    def settle(self, loops: Sequence[Loop]) -> State:
        """Run the loops, mixed, until the clock has settled."""


@dataclasses.dataclass(frozen=True)
class Entrant:
    """A competitor and what became of it; `loop` is None unless it may be timed.

    outcome: measured, or refused (the kernel says why), failed (it didn't compile or launch),
    wrong (its output is), skipped (too slow).
    """

    competitor: Competitor
    outcome: str
    reason: str | None = None
    worst: float | None = None
    loop: Loop | None = None

    def __str__(self) -> str:
        name = self.competitor.name
        if self.loop is None:
            return f"{name}: {self.outcome}: {self.reason}"
        note = f"; {self.reason}" if self.reason else ""
        us = self.loop.seconds * 1e6
        return f"{name}: about {us:.4g} us, error {self.worst:.2f} of its bound{note}"


@dataclasses.dataclass(frozen=True)
class Race:
    """The entrants, each round's samples by name, the settled card, and whether Ctrl-C ended it."""

    entrants: tuple[Entrant, ...]
    rounds: tuple[Mapping[str, Sample], ...] = ()
    settled: State = dataclasses.field(default_factory=State)
    interrupted: bool = False


def measure(
    field: Sequence[Competitor],
    bench: Bench,
    plan: Plan,
    rng: random.Random,
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[Sequence, str], Iterable] = lambda items, what: items,
) -> Race:
    """Admit, settle, run the rounds.

    `say` gets lines of text; `progress` wraps what is iterated, under a title.
    """
    entrants = []
    for competitor in progress(field, "compile and check"):
        entrants.append(admit(competitor, bench, plan))
        say(f"  {entrants[-1]}")
    loops = {entrant.competitor.name: entrant.loop for entrant in entrants if entrant.loop}
    if not loops:
        return Race(tuple(entrants))
    settled = bench.settle(list(loops.values()))
    count = max(plan.rounds, plan.most or 0)
    enough = functools.partial(_precise, plan)
    rounds, interrupted = run_rounds(loops, count, rng, progress, enough)
    say(f"  {len(rounds)} rounds at {settled.sm_mhz or 'an unknown number of'} MHz")
    for name in loops.keys() - {name for taken in rounds for name in taken}:
        say(f"  {name}: interrupted before its first round; it has no row")
    return Race(tuple(entrants), tuple(rounds), settled, interrupted)


def admit(competitor: Competitor, bench: Bench, plan: Plan) -> Entrant:
    """Compile, verify and prepare one competitor, or say why not."""
    if competitor.refusal:
        return Entrant(competitor, "refused", competitor.refusal)
    if competitor.fault:
        return Entrant(competitor, "wrong", competitor.fault)
    try:
        seconds = bench.estimate(competitor)
        if seconds > plan.longest:
            reason = f"about {seconds:.1f} s per launch, more than {plan.longest} s"
            return Entrant(competitor, "skipped", reason)
        loop = bench.loop(competitor)
    except Exception as error:  # out of shared memory, a compiler error: news, not a crash
        bench.recover()
        return Entrant(competitor, "failed", _brief(error))
    verdict = bench.verify(loop, competitor.accumulate)
    if not verdict.ok and (competitor.rung is not None or verdict.worst > competitor.slack):
        return Entrant(competitor, "wrong", str(verdict), verdict.worst)
    # The reference stays even if it breaks our bound: it is what users have. The row says so.
    return Entrant(
        competitor, "measured", None if verdict.ok else str(verdict), verdict.worst, loop
    )


def _brief(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    said = str(error) or f"{Path(where.filename).name}, line {where.lineno}: {where.line}"
    text = " ".join(f"{type(error).__name__}: {said}".split())
    return text if len(text) <= 300 else f"{text[:150]} ... {text[-150:]}"


def run_rounds(
    loops: Mapping[str, Loop],
    count: int,
    rng: random.Random,
    progress: Callable[[Sequence, str], Iterable] = lambda items, what: items,
    enough: Callable[[Sequence[Mapping[str, Sample]]], bool] = lambda taken: False,
) -> tuple[list[dict[str, Sample]], bool]:
    """Time all loops in random order, round by round, until `enough`; True if Ctrl-C ended it."""
    taken: list[dict[str, Sample]] = []
    try:
        for index in progress(range(count), "rounds"):
            names = [name for name, loop in loops.items() if index % loop.every(count) == 0]
            rng.shuffle(names)
            taken.append({})
            for name in names:
                taken[-1][name] = loops[name].time()
            if enough(taken):
                break
    except KeyboardInterrupt:
        return taken, True
    return taken, False


def _precise(plan: Plan, taken: Sequence[Mapping[str, Sample]]) -> bool:
    """Whether every ratio to the reference is known well enough, if the plan asks for that.

    Only the spread decides, never the ratio itself: stopping at a pleasing value would be a bias.
    """
    if plan.most is None or len(taken) < plan.rounds:
        return False
    times = _seconds(taken)
    found = (ratios(times, REFERENCE, name) for name in taken[0] if name != REFERENCE)
    return all(standard_error(values) < plan.error for values in found if values)


def _seconds(rounds: Sequence[Mapping[str, Sample]]) -> list[dict[str, float]]:
    return [{name: sample.seconds for name, sample in r.items()} for r in rounds]


def rows_of(race: Race, heading: Heading) -> list[Row]:
    """One row per entrant; an entrant that the interruption left without a sample has none."""
    times = _seconds(race.rounds)
    null = compare(times, REFERENCE, NULL)
    fastest = _fastest_per_rung(race.entrants, times)

    rows = []
    for entrant in race.entrants:
        competitor, loop = entrant.competitor, entrant.loop
        samples = [r[competitor.name] for r in race.rounds if competitor.name in r]
        timed: dict[str, Any] = {}
        if loop and not samples:
            continue
        if loop:
            below = _below(competitor, fastest)
            versus = {name: compare(times, name, competitor.name) for name in competitor.rivals}
            state = State.median(sample.state for sample in samples)
            metered = [1e3 * sample.joules for sample in samples if sample.joules is not None]
            timed = {
                "launches": loop.launches,
                "rounds": len(samples),
                "us": Quantiles.of(sample.seconds * 1e6 for sample in samples),
                "mj": Quantiles.of(metered) if metered else None,
                "ratio": compare(times, REFERENCE, competitor.name),
                "null": null,
                "below": below,
                "ratio_below": below and compare(times, below, competitor.name),
                "versus": {name: ratio for name, ratio in versus.items() if ratio} or None,
                "settled_mhz": race.settled.sm_mhz,
            } | {name: getattr(state, name) for name in ("sm_mhz", "power_w", "temperature_c")}
        names = ("ladder", "rung", "number", "config")
        rows.append(
            Row(
                **vars(heading),
                **{name: getattr(competitor, name) for name in names},
                competitor=competitor.name,
                outcome=entrant.outcome,
                reason=entrant.reason,
                worst=_finite(entrant.worst),
                **timed,
            )
        )
    return rows


def _below(
    competitor: Competitor, fastest: Mapping[tuple[str | None, int], Competitor]
) -> str | None:
    """The name of the competitor that this one is a rung above, None if none was timed."""
    own = {n: c for (ladder, n), c in fastest.items() if ladder == competitor.ladder}
    for rung in own.values():
        if rung.rung == competitor.adds_to:
            return rung.name
    lower = [number for number in own if number < (competitor.number or 0)]
    return own[max(lower)].name if lower else None


def _fastest_per_rung(
    entrants: Sequence[Entrant], times
) -> dict[tuple[str | None, int], Competitor]:
    """Ladder and rung number -> the rung's fastest timed competitor."""
    best: dict[tuple[str | None, int], tuple[float, Competitor]] = {}
    for competitor in (entrant.competitor for entrant in entrants):
        own = [r[competitor.name] for r in times if competitor.name in r]
        if competitor.number is None or not own:
            continue
        key, median = (competitor.ladder, competitor.number), Quantiles.of(own).p50
        if key not in best or median < best[key][0]:
            best[key] = median, competitor
    return {key: competitor for key, (_, competitor) in best.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
