"""Stand-ins for a card: a bench with real operands and checks and made-up times; rungs that err."""

import argparse
import dataclasses
import io
import random
import tempfile
from pathlib import Path

import pytest
import torch

from perf import __main__, ahead, competitors, engine, operands, rows, shards
from perf.case import Case
from perf.engine import Loop, Plan, Sample
from perf.machine import Environment, State
from perf.plots import live
from perf.rows import REFERENCE, Heading, Row
from perf.stats import Quantiles
from tritemm.problem import Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel

CASE = Case(M=48, N=40, K=32, layout="NT", dtype="fp32")
HALF_CASE = Case(M=48, N=40, K=32, layout="NT", dtype="fp16", accumulate="fp16")
ENVIRONMENT = Environment(
    "NVIDIA H200", "580.1", "13.0", "2.11.0", "3.6.0", "13.1.0", "a" * 40, True
)
QUIET = Plan(rounds=24, settle=0)
TIME = "2026-01-02T03:04:05+00:00"


class Clock:
    """A card whose speed drifts by 15 %, jitters by 1 % and is read by every competitor."""

    def __init__(self):
        self.rng, self.ticks = random.Random(1), 0

    def slowness(self):
        self.ticks += 1
        return (1 + 0.15 * min(self.ticks, 200) / 200) * self.rng.gauss(1, 0.01)


class Inline:
    """In place of a process of `perf.shards`: the command runs here, before anything waits."""

    def __init__(self, argv, part, device):
        self.stdout = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(shards.VARIABLE, part.to_json())
            self.returncode = __main__.main(list(argv))

    def poll(self):
        return self.returncode


class InlineWorker:
    """In place of a process that draws."""

    def ask(self, function, *args):
        return function(*args)

    def kill(self):
        pass

    def close(self):
        pass


def here(monkeypatch):
    """A command on the CPU: nothing is compiled ahead, and pictures are drawn in this process."""
    monkeypatch.setattr(ahead, "_items", lambda case, **options: [])
    monkeypatch.setattr(live, "Worker", InlineWorker)


def four_gpus(monkeypatch):
    """A host of four cards, each with an inline process."""
    monkeypatch.setattr(shards, "_start", Inline)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ENVIRONMENT.gpu)


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

        return Loop(launches, seconds, replay, timer, results)

    def recover(self):
        self.recovered += 1

    def verify(self, loop, accumulate=None):
        given = loop.replay, loop.launches, accumulate, loop.results
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


def fake(stem, spoil=lambda c: None, **fields):
    fields = {"configs": lambda problem: (Config(16, 16, 16), Config(32, 32, 16))} | fields
    return FakeKernel(stem=stem, **{"doc": f"{stem[4:]}: fake.", "spoil": spoil} | fields)


def headed(stem, adds_to, mirrors, **fields):
    doc = f"{stem[4:]}: fake.\n\nAdds to  {adds_to}\nMirrors  {mirrors}\n"
    return fake(stem, doc=doc, **fields)


def heading(case=CASE, **fields):
    known = {"time": TIME, "command": "python -m perf ladder", "mode": "sustained"}
    return Heading(**known | {"environment": ENVIRONMENT, "case": case} | fields)


def measure(kernels, seconds=None, plan=QUIET, **selection):
    """The rows of a race of `kernels` and cuBLAS, on one ladder."""
    bench = FakeBench(CASE, seconds or {})
    problem = Problem.of(*bench.sets[0])
    field = competitors.of_kernels(problem, kernels, **selection) + competitors.cublas(CASE)
    return rows_after(field, bench, plan)


def rows_after(field, bench, plan=QUIET):
    race = engine.measure(field, bench, plan, random.Random(0))
    return engine.rows_of(race, heading(bench.case))


def parsed_by(command, *argv):
    """The arguments that a module of `perf.commands` is given; `argv` begins with its name."""
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(argv)
    args.argv = list(argv)
    return args


def ran(command, path, *argv):
    """The status of a command that records to `path`, and all rows there."""
    args = parsed_by(command, *argv, "--out", str(path))
    return args.command(args), rows.read(path) if path.exists() else []


def kept(found):
    """The rows as a file has them: their numbers are rounded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        rows.append(path, found)
        return rows.read(path)


def by_name(found):
    return {row.competitor: row for row in found}


def spoil_one(c):
    c[-1, -1] += 1


def leave_one(c):
    c[3, 5] = torch.nan


def synthetic():
    """Rows in the shape of a measured ladder of the real rungs."""
    speeds = [1.2, 28, 310, 334, 583, 612, 655]
    found = []
    for kernel, tflops in zip(RUNGS, [*speeds, *range(656, 700)], strict=False):
        ratio = tflops / 648
        found.append(
            Row(
                time="2026-01-02T03:04:05+00:00", command="", mode="sustained",
                environment=ENVIRONMENT, case=Case(4096, 4096, 4096, "NT"),
                competitor=kernel.name, ladder="triton", rung=kernel.name, number=kernel.number,
                config=dataclasses.asdict(Config(16, 16, 16)), outcome="measured", worst=0.3,
                launches=9, rounds=30, us=Quantiles(*[137438.953472 / tflops] * 3),
                ratio=Quantiles(ratio * 0.98, ratio, ratio * 1.02), null=Quantiles(0.999, 1, 1.001),
                below=found[-1].competitor if found else None,
                ratio_below=Quantiles(1, 1.1, 1.2) if found else None, sm_mhz=1410.0, power_w=690.0,
            )
        )  # fmt: skip
    found[4] = dataclasses.replace(found[4], below=found[2].competitor)
    red = {"us": None, "ratio": None, "outcome": "wrong"}
    found[3] = dataclasses.replace(found[3], **red, reason="7 of 9 elements are wrong; at (0, 1)")
    reference = {
        "competitor": REFERENCE,
        "ladder": None,
        "rung": None,
        "number": None,
        "below": None,
    }
    found.append(
        dataclasses.replace(
            found[-1],
            **reference,
            us=Quantiles(*[137438.953472 / 648] * 3),
            ratio=Quantiles(1, 1, 1),
            ratio_below=None,
        )
    )
    return found
