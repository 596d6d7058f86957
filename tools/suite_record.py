"""What a run of the suite on a GPU leaves behind: a pytest plugin, and what makes a record count.

    python -m pytest -p tools.suite_record --record=[PATH]      # what `make test-gpu` does
    python -m pytest -m devices -p tools.suite_record --record=[PATH]       # `make test-gpus`

runs the tests that touch a device and writes tests/results/GPU.json, or PATH; with `-m devices`
those of several GPUs alone, and GPU-x2.json where there are two. A record is of the code that it
ran: it carries a hash of `tritemm/`, and the README says when that has changed.

Where there is no time for all at once, `--part=1/2` runs about half of the tests and `--part=2/2`
the others. Each adds to the record at the same path, which counts when no part is missing.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import platform
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from perf import race
from perf.machine import environment, slug
from tritemm.cli import env

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "results"
#: The tests that run: those that touch no device are marked `host`, a whole file at a time. Or
#: those of several GPUs.
CHOSEN, SEVERAL = "gpu or not host", "devices"
#: What a test run may end with and still have run all that was chosen: all passed, some failed.
COMPLETE = (0, 1)
#: Of each field, the type; None is what a machine doesn't say.
FIELDS = {
    "gpu": str, "gpus": int, "chosen": str, "commit": str | None, "dirty": bool | None,
    "code": str, "python": str, "torch": str, "triton": str, "cuda": str | None, "driver": str,
    "passed": int, "failed": int, "errors": int, "skipped": int, "seconds": float, "failures": list,
}  # fmt: skip


def code_hash(package: Path = ROOT / "tritemm") -> str:
    """Hash of all that decides what the package computes: its .py and .json, names and contents."""
    found = hashlib.sha256()
    files = (path for kind in ("py", "json") for path in package.rglob(f"*.{kind}"))
    for name, path in sorted((path.relative_to(package).as_posix(), path) for path in files):
        data = path.read_bytes()
        found.update(f"{name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def fault(text: str) -> str | None:
    """Why a record's `text` doesn't say that the code it ran is right; None if it does."""
    try:
        record = json.loads(text)
        wrong = [name for name, kind in FIELDS.items() if not isinstance(record[name], kind)]
    except (KeyError, TypeError, ValueError) as error:
        return f"the record is malformed: {error!r}"
    if wrong:
        return f"the record is malformed: {', '.join(wrong)}"
    if parts := record.get("parts"):
        return f"the record is of a part of the suite alone: {', '.join(parts)}"
    if record["failed"] or record["errors"] or record["failures"]:
        count = record["failed"] + record["errors"]
        return f"the record is red: {count} failed: {', '.join(record['failures'])}"
    if not record["passed"]:
        return "the record is of a run in which nothing passed"
    return None


def sentence(record: dict[str, Any], code: str) -> str:
    """The record for a reader, who has the code of that hash."""
    commit = (record["commit"] or "unknown")[:7] + ("-dirty" if record["dirty"] else "")
    older = "" if record["code"] == code else " `tritemm/` has changed since then."
    return (
        f"{where(record)}, commit {commit}: {record['passed']} passed, "
        f"{record['failed'] + record['errors']} failed, {record['skipped']} skipped, in "
        f"{record['seconds']:.0f} s. Python {record['python']}, torch {record['torch']}, Triton "
        f"{record['triton']}, CUDA {record['cuda']}, driver {record['driver']}.{older}"
    )


def where(record: dict[str, Any]) -> str:
    """The GPU of a record, or how many there were, and whether the tests were theirs alone."""
    count = f"{record['gpus']} x " if record["gpus"] > 1 else ""
    what = " (the tests of several GPUs)" if record["chosen"] == SEVERAL else ""
    return f"{count}{record['gpu']}{what}"


# The plugin


def pytest_addoption(parser):
    parser.addoption(
        "--record", metavar="PATH",
        help="run the tests that touch a device; write PATH, or if empty tests/results/GPU.json",
    )  # fmt: skip
    parser.addoption(
        "--part", metavar="K/N", default="1/1",
        help="of N parts of the tests the K-th, which is added to the record of the others",
    )  # fmt: skip


def pytest_collection_modifyitems(config, items):
    chosen = part_of(collections.Counter(item.path for item in items), config.option.part)
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = [item for item in items if item.path in chosen]


def part_of(files: collections.Counter[Path], text: str) -> set[Path]:
    """Whole files, from the one with most tests on; `files` says how many each has."""
    return set(sorted(files, key=lambda file: (-files[file], file))[race.part(text)])


def pytest_configure(config):
    path = config.getoption("--record")
    if path is None:
        return
    config.option.markexpr = config.option.markexpr or CHOSEN  # in the workers of xdist too
    if hasattr(config, "workerinput"):
        return
    if not torch.cuda.is_available():
        raise pytest.UsageError("--record: needs a CUDA device, and torch sees none")
    try:
        race.part(config.option.part)
    except ValueError as error:
        raise pytest.UsageError(f"--part: {error}") from None
    config.pluginmanager.register(Recorder(path))
    config.pluginmanager.register(Failures(config))


@dataclasses.dataclass
class Failures:
    """Tells of each failure at once, since a run that is cut short ends without a summary."""

    config: pytest.Config

    def pytest_runtest_logreport(self, report):
        if report.failed:
            lines = report.longreprtext.splitlines()
            words = [line for line in lines if line.startswith("E  ")] or lines[-1:]
            said = " / ".join(line.removeprefix("E").strip() for line in words)
            terminal = self.config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f"\n{report.when} of {report.nodeid} failed: {said[:600]}")


@dataclasses.dataclass
class Recorder:
    """Writes the record of a complete run; of a part of the suite it writes none and says so."""

    path: str
    code: str = dataclasses.field(default_factory=code_hash)
    start: float = dataclasses.field(default_factory=time.monotonic)

    def pytest_terminal_summary(self, terminalreporter, exitstatus, config):
        if exitstatus not in COMPLETE or is_part(config):
            terminalreporter.line("record: none, for this was not the whole suite on a GPU")
            return
        record = self.record(terminalreporter.stats, config.option.markexpr)
        path = Path(self.path) if self.path else RESULTS / name_of(record)
        path.parent.mkdir(parents=True, exist_ok=True)
        if config.option.part != "1/1":
            before = json.loads(path.read_text()) if path.exists() else {}
            record = joined(record, config.option.part, before)
        path.write_text(json.dumps(record, indent=1) + "\n")
        terminalreporter.line(f"record: {path}: {sentence(record, self.code)}")

    def record(self, stats: dict[str, list], chosen: str = CHOSEN) -> dict[str, Any]:
        """Counts of the reports by outcome, of the tests that were chosen by their marks."""
        on = dataclasses.asdict(environment())
        broken = stats.get("failed", []) + stats.get("error", [])
        return {
            "gpu": on["gpu"],
            "gpus": torch.cuda.device_count(),
            "chosen": chosen,
            **{name: on[name] for name in ("commit", "dirty")},
            "code": self.code,
            "python": platform.python_version(),
            **{name: on[name] for name in ("torch", "triton", "cuda")},
            "driver": on["driver"] or env.collect()["driver"],
            "passed": len(stats.get("passed", [])),
            "failed": len(stats.get("failed", [])),
            "errors": len(stats.get("error", [])),
            "skipped": len(stats.get("skipped", [])),
            "seconds": round(time.monotonic() - self.start, 1),
            "failures": sorted({report.nodeid for report in broken}),
        }


def joined(record: dict[str, Any], part: str, before: dict[str, Any]) -> dict[str, Any]:
    """The record with its part, and with what `before` says of other parts of the same suite."""
    same = ("gpu", "gpus", "chosen", "code", "torch", "triton")
    parts = before.get("parts", [])
    if part in parts or any(before.get(name) != record[name] for name in same):
        before, parts = {}, []
    for name in ("passed", "failed", "errors", "skipped", "seconds", "failures"):
        record[name] += before.get(name, type(record[name])())
    parts = sorted([*parts, part])
    return record | ({} if len(parts) == int(part.split("/")[1]) else {"parts": parts})


def name_of(record: dict[str, Any]) -> str:
    """The file of a record."""
    several = f"-x{record['gpus']}" if record["chosen"] == SEVERAL else ""
    return f"{slug(record['gpu'])}{several}.json"


def is_part(config) -> bool:
    """Whether the command names tests, by place, word, mark or earlier failure."""
    options = config.option
    return bool(
        config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        or options.markexpr not in (CHOSEN, SEVERAL)
        or options.keyword
        or getattr(options, "deselect", None)
        or getattr(options, "lf", False)
    )
