"""The ladder at work: every rung multiplies one layer of Llama-3-8B, checked and shown.

On a GPU the layer has its real size, and the rungs are timed against torch. In the interpreter it
is scaled to a sixteenth, and nothing is timed: the CPU's time says nothing about a kernel.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import budget, dispatch, plan
from ..compile import asm
from ..machine.command import write_why_not
from ..problem import INTERPRETED, Problem
from ..rungs import RUNGS
from ..runtime.clock import elapsed
from ..spec import Kernel
from . import env

#: Attention output projection of Llama-3-8B, 4096 -> 4096, for 4096 tokens: y = x @ w.T.
LAYER = (4096, 4096, 4096)
SCALE = 16 if INTERPRETED else 1
ROUNDS = 12

#: The groups of `sass.GROUPS` that distinguish the rungs.
SHOWN = (
    "tensor core",
    "multiply-add",
    "global loads",
    "async copies",
    "TMA",
    "shared memory",
    "barriers",
)


@dataclasses.dataclass
class Row:
    """One rung's outcome; times in seconds, 0 where nothing was timed."""

    rung: str
    verdict: str
    ok: bool
    time: float = 0.0
    ratio: float = 0.0
    mix: dict[int, dict[str, int]] = dataclasses.field(default_factory=dict)


def main(plot: Path, as_json: bool = False) -> int:
    """Run the demo; 1 if a rung is wrong."""
    facts = env.collect()
    M, N, K = (size // SCALE for size in LAYER)
    if not as_json:
        print(env.render(facts), end="\n\n")
        scaled = f", scaled to 1/{SCALE} for the interpreter" if INTERPRETED else ""
        print(f"Llama-3-8B attention output projection: {M} x {N} x {K} NT, bf16{scaled}\n")
    device = "cpu" if INTERPRETED else "cuda"
    x = torch.randn(M, K, device=device).bfloat16()
    w = torch.randn(N, K, device=device).bfloat16()
    jobs = [asm.Job(k.name, sm, *LAYER, layout="NT") for k in RUNGS for sm in k.signs]
    codes = asm.compile_many(jobs, detail="mix")
    rows = [_check(kernel, x, w.mT) for kernel in RUNGS]
    reference = 0.0 if INTERPRETED else _time(rows, x, w.mT)
    for job, code in zip(jobs, codes, strict=True):
        row = next(row for row in rows if row.rung == job.rung)
        row.mix[job.sm] = _groups(code) if isinstance(code, asm.Code) else {}
    flops = 2 * M * N * K
    if as_json:
        result = {"environment": facts, "problem": [M, N, K], "torch_seconds": reference}
        print(json.dumps(result | {"rungs": [dataclasses.asdict(row) for row in rows]}, indent=2))
    else:
        for row in rows:
            print(_line(row, flops))
        if reference:
            print(f"{'torch.matmul':<18}{_speed(reference, flops)}")
            print("\nA quick look; `python -m perf ladder` in the repository measures with care.")
        else:
            print("\nNothing is timed here: the interpreter runs on the CPU.")
        print(_draw(rows, plot, flops, reference))
    return 0 if all(row.ok for row in rows) else 1


def plot_why_not(path: Path) -> str | None:
    """Why the chart can't be saved there, or None; checked before anything runs."""
    if reason := write_why_not(path):
        return reason
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        return None  # then there is no chart, and a sentence says so
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        return f"its name must end in one of .{', .'.join(sorted(kinds))}"
    return None


def _check(kernel: Kernel, a, b) -> Row:
    c = torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=a.dtype, device=a.device)
    problem = Problem.of(a, b, c)
    refusal = kernel.why_not(problem)
    if refusal:
        return Row(kernel.name, f"not here: {refusal}", ok=True)
    plan.run(kernel, problem, dispatch.best_config(kernel, problem), a, b, c)
    verdict = budget.check(c, a, b)
    return Row(kernel.name, "correct" if verdict.ok else str(verdict), verdict.ok)


def _time(rows: list[Row], a, b) -> float:
    """Fill in the rows' times; return torch's. Competitors take turns in random order."""
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    problem = Problem.of(a, b, c)
    calls: dict[str, Callable[..., Any]] = {"torch": lambda: torch.matmul(a, b, out=c)}
    for kernel in RUNGS:
        if not kernel.why_not(problem):
            config = dispatch.best_config(kernel, problem)
            calls[kernel.name] = lambda k=kernel, f=config: plan.run(k, problem, f, a, b, c)
    for _ in range(1000):  # the clock of a cold card favours the first to run
        calls["torch"]()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name in random.sample(list(calls), len(calls)):
            times[name].append(elapsed(calls[name], repeats=8))
    for row in rows:
        if row.rung in times:
            row.time = statistics.median(times[row.rung])
            ratios = [t / own for t, own in zip(times["torch"], times[row.rung], strict=True)]
            row.ratio = statistics.median(ratios)
    return statistics.median(times["torch"])


def _groups(code: asm.Code) -> dict[str, int]:
    """Static instruction counts by group, without empty groups."""
    counts = {group: sum(code.group(group).values()) for group in SHOWN}
    return {group: count for group, count in counts.items() if count}


def _speed(seconds: float, flops: int) -> str:
    return f"{1e6 * seconds:10.1f} us {flops / seconds / 1e12:7.1f} TFLOP/s" if seconds else ""


def _line(row: Row, flops: int) -> str:
    ratio = f"  {row.ratio:.2f}x torch" if row.ratio else ""
    lines = [f"{row.rung:<18}{_speed(row.time, flops)}{ratio}{'  ' if ratio else ''}{row.verdict}"]
    for sm, counts in row.mix.items():
        if counts:
            mix = ", ".join(f"{count} {label}" for label, count in counts.items())
            lines.append(f"{'':<18}sm_{sm}: {mix}")
    return "\n".join(lines)


def _draw(rows: list[Row], path: Path, flops: int, reference: float) -> str:
    """Save the bar chart; return a sentence that says where."""
    try:
        import matplotlib
    except ImportError:
        return "No chart: matplotlib is missing (pip install 'tritemm[perf]')."
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.5 * len(rows) + 1.6), layout="constrained")
    names = [row.rung for row in rows]
    if reference:
        speeds = [flops / row.time / 1e12 if row.time else 0 for row in rows]
        bars = axes.barh(names, speeds, color="tab:green")
        axes.bar_label(bars, fmt=" %.0f")
        cublas = flops / reference / 1e12
        axes.axvline(cublas, color="grey", label=f"torch.matmul {cublas:.0f}")
        axes.set_xlabel("TFLOP/s")
        size = " x ".join(map(str, LAYER))
        axes.set_title(f"{size} NT, bf16, {torch.cuda.get_device_name()}")
    else:
        left = [0.0] * len(rows)
        mixes = [row.mix[max(row.mix)] for row in rows]
        for label in SHOWN:
            share = [100 * mix.get(label, 0) / (sum(mix.values()) or 1) for mix in mixes]
            axes.barh(names, share, left=left, label=label)
            left = [x + y for x, y in zip(left, share, strict=True)]
        axes.set_xlabel("share of the instructions below in the compiled code, %")
        axes.set_title("What each rung compiles to (sm_90, bf16, NT; no GPU here, nothing timed)")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        return f"No chart: {path}: {error.strerror}"
    finally:
        plt.close(figure)
    return f"Chart: {path}"
