"""What a search of one problem finds: the options, their times, the place of the choice."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tritemm.config import changed
from tritemm.spec import Config, Kernel

from .case import ACCUMULATE, Case
from .competitors import Candidate

CUBLAS = "cuBLAS"


@dataclasses.dataclass(frozen=True)
class Option:
    """A way to multiply: a rung with a config and the time that the model expects, or cuBLAS."""

    kernel: Kernel | None
    config: Config | None
    predicted: float | None

    @property
    def name(self) -> str:
        return Candidate(self.kernel.name, self.config).name if self.kernel else CUBLAS


@dataclasses.dataclass(frozen=True)
class Result:
    """An option's seconds per product, or the error that it has instead.

    `scaled`: it was timed before the clock had settled, and is taken to slow down as others did.
    """

    option: Option
    seconds: float | None
    error: str | None = None
    scaled: bool = False

    @property
    def name(self) -> str:
        return self.option.name


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search of one problem found: results, the fastest first, then the failures."""

    case: Case
    results: tuple[Result, ...]
    chosen: str

    @property
    def timed(self) -> list[Result]:
        """Without cuBLAS."""
        return [r for r in self.results if r.seconds and r.option.kernel]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.error]

    @property
    def cublas(self) -> Result | None:
        return next((r for r in self.results if r.seconds and not r.option.kernel), None)

    @property
    def choice(self) -> Result | None:
        """The dispatcher's, None if it has no time."""
        return next((r for r in self.timed if r.name == self.chosen), None)

    @property
    def rank(self) -> int | None:
        """The choice's place among the timed ones, from 1."""
        return self.timed.index(self.choice) + 1 if self.choice else None

    @property
    def regret(self) -> float | None:
        """The choice's time over the best one's."""
        return self.choice.seconds / self.timed[0].seconds if self.choice else None


def to_json(case: Case, result: Result) -> str:
    """One line: the problem, the option, what it took and what was expected, in microseconds.

    `precision` and `accumulate` are there where they are not the type's own; `error` where there
    is no time; `scaled` where the time is.
    """
    option = result.option
    fields: dict[str, Any] = {
        "M": case.M, "N": case.N, "K": case.K, "batch": case.batch, "layout": case.layout,
        "dtype": case.dtype, "out": case.output,
        "kernel": option.kernel.name if option.kernel else CUBLAS,
        "config": changed(option.config) if option.config else {},
        "us": _us(result.seconds), "predicted_us": _us(option.predicted),
    }  # fmt: skip
    if case.dtype == "fp32":
        fields["precision"] = case.precision
    if case.accumulate != ACCUMULATE[case.dtype]:
        fields["accumulate"] = case.accumulate
    if result.error:
        fields["error"] = result.error
    if result.scaled:
        fields["scaled"] = True
    return json.dumps(fields, separators=(",", ":"))


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1e6 * seconds:.5g}")


def text(found: Found, best: int = 5) -> str:
    """The fastest few with what was predicted of them, cuBLAS, and how the choice compares."""
    lines = [_line(str(i + 1), result) for i, result in enumerate(found.timed[:best])]
    if found.cublas:
        lines.append(_line("", found.cublas))
    choice = found.choice
    if choice is None:
        lines.append(f"     the choice has no time: {found.chosen}")
    else:
        if found.rank > best:
            lines.append(_line(str(found.rank), choice))
        lines.append(f"     the choice is number {found.rank}, {found.regret:.3f} of the best")
    if found.failures:
        lines.append(f"     {len(found.failures)} without a time, of {len(found.results) - 1}")
    return "\n".join(lines)


def _line(rank: str, result: Result) -> str:
    predicted = result.option.predicted
    note = f"  predicted {1e6 * predicted:9.2f}" if predicted else ""
    return f"{rank:>4} {result.name:<56} {1e6 * result.seconds:9.2f} us{note}"
