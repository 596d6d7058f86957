"""What the lessons measure on a GPU: Nsight Compute's counters, and joules by the card's own meter.

Counters are of one warm launch with L2 emptied before (`perf profile`). Joules are the difference
of the card's energy counter over some seconds of launches back to back, at the clock that the card
then settles at.
"""

import dataclasses
import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from perf.case import Case
from perf.experiments import profile
from perf.machine import environment
from perf.operands import operands
from perf.tables import Table, markdown
from tritemm.problem import Problem
from tritemm.rungs import RUNGS, find
from tritemm.spec import Config

from . import Lesson, lessons

DATA = Path(__file__).with_name("measured.json")
#: The product that is weighed: that of the README's table.
HEADLINE = Case(8192, 8192, 8192, "NN", "bf16")
#: Seconds of launches before the meter is read, and between its two readings.
SETTLE, WEIGH = 1.0, 2.0
#: Counters by the words of the lessons.
LABELS = {counter.label.strip(): counter for counter in profile.COUNTERS}


def measure(what: str, rungs: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The `counters` of each lesson's two rungs, or the `joules` of every rung; of `rungs` alone.

    Yields all that is known after each.
    """
    known = load() if DATA.exists() else {}
    found = {"environment": dataclasses.asdict(environment())}
    found |= {name: dict(known.get(name, {})) for name in ("counters", "joules")}
    pairs = {
        (name, each.case) for each in lessons().values() for name in (each.below, each.rung) if name
    }
    wanted = {
        "counters": [(key(*pair), counters, pair) for pair in sorted(pairs, key=str)],
        "joules": [(kernel.name, weighed, (kernel.name,)) for kernel in RUNGS],
    }
    for word, taken, arguments in wanted[what]:
        if not rungs or arguments[0] in rungs:
            value = taken(*arguments)
            if value is not None:
                found[what][word] = value
                yield found


def key(name: str, case: Case) -> str:
    return f"{name}, {case}"


def counters(name: str, case: Case) -> dict[str, Any] | None:
    """What Nsight Compute counts, by the labels of `LABELS`; None where it can't."""
    size = f"{case.M}x{case.N}x{case.K}"
    words = ["profile", name, "--size", size, "--layout", case.layout, "--dtype", case.dtype]
    words += [] if cube(case) else ["--chosen"]
    done = subprocess.run(
        [sys.executable, "-m", "perf", *words, "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"{key(name, case)}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return reduced(json.loads(done.stdout))


def cube(case: Case) -> bool:
    """There rungs are compared in their first configs; elsewhere each shows what it is for."""
    return case.M == case.N == case.K


def reduced(row: dict[str, Any]) -> dict[str, Any]:
    """The counters of the largest kernel that `perf profile --json` prints."""
    kernel = max(row["kernels"], key=lambda each: each["values"].get("gpu__time_duration.sum", 0))
    own = profile.Profile(kernel["kernel"], kernel["grid"], kernel["block"], kernel["values"])
    values = {label: counter.value(own.values) for label, counter in LABELS.items()}
    stalls = [[word, round(value, 2)] for word, value in own.stalls()[:3]]
    return {"code": row["code"], "config": row["config"], "values": values, "stalls": stalls}


def weighed(name: str) -> dict[str, float]:
    """Joules, watts and microseconds of one product of `HEADLINE`."""
    import pynvml

    kernel, tensors = find(name), operands(HEADLINE, "cuda")
    problem = Problem.of(*tensors)
    config = kernel.configs(problem)[0]
    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def launched(seconds: float) -> tuple[int, float]:
        count, begin = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begin < seconds:
            for _ in range(4):
                kernel.launch(problem, config, *tensors)
            torch.cuda.synchronize()
            count += 4
        return count, time.perf_counter() - begin

    launched(SETTLE)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(card)  # millijoules
    count, seconds = launched(WEIGH)
    joules = (pynvml.nvmlDeviceGetTotalEnergyConsumption(card) - before) / 1e3
    return {
        "joules": joules / count, "watts": joules / seconds, "us": 1e6 * seconds / count,
    }  # fmt: skip


@functools.cache
def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def table(lesson: Lesson) -> str:
    """The lesson's counters of the rung below and of this one."""
    names = [name for name in (lesson.below, lesson.rung) if name]
    found = {name: load()["counters"].get(key(name, lesson.case)) for name in names}
    found = {name: entry for name, entry in found.items() if entry}
    if not found:
        return "Not yet counted."
    rows = []
    if all("config" in entry for entry in found.values()):
        rows.append(["in", *(str(Config(**entry["config"])) for entry in found.values())])
    for label in lesson.counters:
        shown = [profile.shown(e["values"][label], LABELS[label].kind) for e in found.values()]
        rows.append([label, *shown])
    waits = [profile.waiting(entry["stalls"][0][0]) for entry in found.values()]
    rows.append(["a warp waits most for", *waits])
    gpu = load()["environment"]["gpu"]
    said = f"Nsight Compute, one launch on {gpu}, with L2 emptied before it: {lesson.case}."
    if not cube(lesson.case):
        said += " Each in the config that the dispatcher takes for it."
    return markdown([Table(["", *found], rows), said])
