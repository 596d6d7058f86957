"""Stand-ins for a card: a bench with real operands and checks and made-up times; rungs that err."""

import dataclasses
import random
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from perf import (
    __main__,
    bench,
    cli,
    competitors,
    engine,
    machine,
    operands,
    race,
    roof,
    rows,
    rungs,
    session,
    ways,
)
from perf.case import Case
from perf.engine import Loop, Plan, Sample
from perf.machine import Environment, State
from perf.problems import Problem as Named
from perf.rows import REFERENCE, Heading, Row
from perf.stats import Quantiles
from tritemm.problem import INTERPRETED, Device, Problem
from tritemm.spec import Config, Kernel, Limits

CASE = Case(M=48, N=40, K=32, layout="NT", dtype="fp32")
ENVIRONMENT = Environment(
    "NVIDIA H200", "580.1", "13.0", "2.11.0", "3.6.0", "13.1.0", "a" * 40, True
)
ROOFS = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), mhz=1450.0, gbs=4200.0)
QUIET = Plan(rounds=24, settle=0)
OLD, NEW = "2026-01-02T03:04:05+00:00", "2026-02-02T03:04:05+00:00"


class Clock:
    """A card whose speed drifts by 15 %, jitters by 1 % and is read by every competitor."""

    def __init__(self):
        self.rng, self.ticks = random.Random(1), 0

    def slowness(self):
        self.ticks += 1
        return (1 + 0.15 * min(self.ticks, 200) / 200) * self.rng.gauss(1, 0.01)


class Compilers:
    """In place of the processes that compile ahead: what they were asked for, by all of them."""

    asked: ClassVar[list] = []

    def submit(self, item):
        Compilers.asked.append(item)
        future = Future()
        future.set_result(None)
        return future

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass


def on_cpu(monkeypatch):
    """Commands run here: rungs are interpreted, nothing is compiled ahead; times are those of the
    returned mapping, by competitor."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    seconds, Compilers.asked = {}, []
    make = lambda case, plan, probe: FakeBench(case, seconds)  # noqa: E731
    for module, name, value in (
        (cli, "unable", lambda command: None),
        (machine, "environment", lambda: ENVIRONMENT),
        (machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0)),
        (roof, "measure", lambda probe: ROOFS),
        (bench, "BENCHES", {"sustained": make, "burst": make}),
        (rungs, "items", lambda case, **options: []),
        (race, "chosen", lambda case: [case]),
        (session, "Compilers", Compilers),
    ):
        monkeypatch.setattr(module, name, value)
    return seconds


def ran(path, *argv):
    """The status of a command that records to `path`, and all rows there."""
    status = __main__.main([*map(str, argv), "--out", str(path)])
    return status, rows.read(path) if path.exists() else []


def parsed(*argv):
    args = __main__.parser().parse_args(argv)
    args.argv = list(argv)
    return args


class FakeBench:
    """The real operands and the real check, on the CPU; times are made up."""

    mode = "sustained"

    def __init__(self, case, seconds):
        self.case, self.seconds, self.clock = case, seconds, Clock()
        self.sets = [operands.operands(case, "cpu") for _ in range(3)]
        self.recovered = 0

    def estimate(self, competitor):
        competitor.run(*self.sets[0])
        return self.seconds.get(competitor.name, 1e-3)

    def loop(self, competitor):
        seconds = self.seconds.get(competitor.name, 1e-3)
        launches = 1 if seconds > 0.1 else 3
        results = [None] * 3

        def replay():
            for index in range(launches):
                results[index % 3] = competitor.run(*self.sets[index % 3])

        def timer():
            return Sample(seconds * self.clock.slowness(), State(1400.0, 690.0, 60.0))

        kind = {"dense": competitor.dense, "split": competitor.split}
        return Loop(launches, seconds, replay, timer, results, **kind)

    def recover(self):
        self.recovered += 1

    def verify(self, loop, accumulate=None):
        given = loop.replay, loop.launches, accumulate, loop.results, loop.dense, loop.split
        return operands.verify(self.case, self.sets, *given)

    def settle(self, loops):
        return State(sm_mhz=1410.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeKernel(Kernel):
    """Multiplies with torch; `spoil(c)` is its bug. `stem` is its number and word, k01_simt."""

    stem: str
    spoil: object = lambda c: None

    @property
    def number(self):
        return int(self.stem[1:3])

    @property
    def name(self):
        return self.stem[4:]

    def launch(self, problem, config, a, b, c):
        torch.matmul(a, b, out=c)
        self.spoil(c)


def tiles_of(problem):
    return Config(16, 16, 16), Config(32, 32, 16)


def fake(stem, spoil=lambda c: None, why_not=lambda problem: None, configs=tiles_of, **fields):
    limits = Limits(configs, needs=(why_not,))
    fields = {"doc": f"{stem[4:]}: fake.", "spoil": spoil, "limits": limits} | fields
    return FakeKernel(stem=stem, **fields)


def headed(stem, adds_to, mirrors, **fields):
    doc = f"{stem[4:]}: fake.\n\nAdds to  {adds_to}\nMirrors  {mirrors}\n"
    return fake(stem, doc=doc, **fields)


def heading(case=CASE, **fields):
    known = {"time": OLD, "command": "python -m perf ladder", "mode": "sustained"}
    return Heading(**known | {"environment": ENVIRONMENT, "case": case} | fields)


def measure(kernels, seconds=None, plan=QUIET, **selection):
    """The rows of a race of `kernels` and cuBLAS, on one ladder."""
    there = FakeBench(CASE, seconds or {})
    problem = Problem.of(*there.sets[0])
    field = competitors.of_kernels(problem, kernels, **selection) + competitors.cublas(CASE)
    return rows_after(field, there, plan)


def rows_after(field, there, plan=QUIET):
    race = engine.measure(field, there, plan, random.Random(0))
    mode = {"mode": there.mode} if hasattr(there, "mode") else {}
    return engine.rows_of(race, heading(there.case, **mode))


def kept(found):
    """The rows as a file has them: their numbers are rounded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        rows.append(path, found)
        return rows.read(path)


def by_name(found):
    return {row.competitor: row for row in found}


def flat(value):
    """Quantiles without a spread."""
    return value and Quantiles(value, value, value)


def row(key, group, ratio=None, competitor="auto", null=1.0, run=OLD, experiment="suite", **fields):
    """A row of a made-up problem, with a ratio, of no spread if it is a number, or refused."""
    case = fields.pop("case", Case(64, 64, 64, dtype=fields.pop("dtype", "bf16")))
    problem = Named(key, group, fields.pop("title", "made up"), case).to_json()
    shared = {"experiment": experiment, "run": run, "time": run, "problem": problem}
    others = (REFERENCE, rows.NULL, *rows.PEERS.values(), *ways.COMPILED)
    ladder = None if competitor in others else "triton"
    shared |= {"roof": roof.Roof(700.0, 4000.0), "ladder": ladder, "rung": None}
    ratio = flat(ratio) if isinstance(ratio, float) else ratio
    timed = {"us": flat(2.0), "ratio": ratio, "null": flat(null), "rounds": 9, "launches": 50}
    refused = {"outcome": "refused", "reason": "not implemented"}
    known = shared | (timed if ratio else refused) | {"competitor": competitor} | fields
    own = {f.name for f in dataclasses.fields(Heading)}
    head = heading(case, **{k: v for k, v in known.items() if k in own})
    return Row(**vars(head), **{k: v for k, v in known.items() if k not in own})


def spoil_one(c):
    c[-1, -1] += 1


def leave_one(c):
    c[3, 5] = torch.nan
