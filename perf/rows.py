"""The measurements' file format: JSON lines, one row per competitor and case, committed.

Schema 1. Times are microseconds per product; "quantiles" are objects {p20, p50, p80} over rounds.
A field that is added gets a default, so that older rows stay readable; the schema's number changes
when a field changes its meaning. `ladder` and `versus` are younger than the first rows.

    schema        1
    time          UTC, ISO 8601; the same for all rows of one race
    command       what was run
    mode          "sustained": CUDA graphs over rotating buffers, at the settled clock
    environment   {gpu, driver, cuda, torch, triton, cublas, commit, dirty}; null is unknown
    case          {M, N, K, layout, dtype, accumulate, precision}; layout as in `perf.case`
    competitor    a rung's word: its first config; `word[1]` ...: its other configs; `word 128x...`:
                  a config from a file; "cublas": torch.matmul with out=, multiplying fp32 as tf32
                  if `precision` is tf32 (else IEEE), 16-bit types accumulated in fp32;
                  "cublas again": the null test; "cublas fp16": the same accumulated in fp16, where
                  `accumulate` is fp16
    ladder        "triton" or "cuda" (`cuda_reference`); null for cuBLAS; absent from older rows,
                  whose rungs are Triton's
    rung, number  the rung's word and its number on its ladder; null for cuBLAS
    config        the fields of `tritemm.spec.Config`; null for cuBLAS
    outcome       measured, refused (by the kernel), failed (to compile or launch), wrong (output),
                  skipped (too slow); only "measured" rows have what follows `worst`
    reason        why it was not measured; for cuBLAS, how it missed the error bound; else null
    worst         largest error over its bound (`tritemm.budget`); null if unknown or not finite
    launches      products per timed replay
    rounds        rounds it took part in
    us            quantiles
    tflops        of us.p50, 2 M N K operations
    ratio         quantiles of cuBLAS's time over this one's, within rounds
    null          quantiles of the null test's ratio
    below         the competitor of the next rung below on the same ladder that was timed (its
                  fastest config); of a CUDA rung the one that it adds to, if that was timed
    ratio_below   quantiles of that one's time over this one's, within rounds
    versus        {competitor: quantiles of its time over this one's, within rounds}: the twins on
                  the other ladder (`perf.twins.rivals`) and "cublas fp16"; null without any
    sm_mhz, power_w, temperature_c   medians, read while it was timed; null without NVML
    settled_mhz   SM clock after the warm-up
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .case import ACCUMULATE, Case
from .machine import Environment
from .stats import Quantiles

SCHEMA = 1
RESULTS = Path(__file__).resolve().parent / "results"

TRITON, CUDA = "triton", "cuda"
#: The reference; under a second name (how far that one's ratio is from 1 is the noise); and with
#: an fp16 accumulator.
REFERENCE, NULL, HALF = "cublas", "cublas again", "cublas fp16"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """See the module."""

    schema: int = SCHEMA
    time: str
    command: str
    mode: str
    environment: Environment
    case: Case
    competitor: str
    rung: str | None
    number: int | None
    config: dict[str, Any] | None
    outcome: str
    ladder: str | None = None
    reason: str | None = None
    worst: float | None = None
    launches: int | None = None
    rounds: int | None = None
    us: Quantiles | None = None
    tflops: float | None = None
    ratio: Quantiles | None = None
    null: Quantiles | None = None
    below: str | None = None
    ratio_below: Quantiles | None = None
    versus: dict[str, Quantiles] | None = None
    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    settled_mhz: float | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @staticmethod
    def from_json(line: str) -> Row:
        """Raises ValueError on what is not a row of this schema."""
        try:
            fields = json.loads(line)
            if fields["schema"] != SCHEMA:
                raise ValueError(f"schema {fields['schema']}; this reads {SCHEMA}")
            fields["environment"] = Environment(**fields["environment"])
            fields["case"] = Case(**fields["case"])
            for name in ("us", "ratio", "null", "ratio_below"):
                fields[name] = fields[name] and Quantiles(**fields[name])
            fields.setdefault("ladder", TRITON if fields["rung"] else None)
            versus = fields.get("versus")
            fields["versus"] = versus and {k: Quantiles(**v) for k, v in versus.items()}
            return Row(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a row: {error!r}") from error


def read(*paths: Path) -> list[Row]:
    """The rows of the files, in order; an unreadable line (a torn write) is warned of and left out.

    Example:
        rows = read(*RESULTS.glob("*.jsonl"))
    """
    rows = []
    for path in paths:
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                rows.append(Row.from_json(line))
            except ValueError as error:
                warnings.warn(f"{path}, line {number}: {error}; left out", stacklevel=2)
    return rows


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to the file, all or none: what was there stays, also if this is interrupted."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        text += "\n"  # a torn last line must not swallow the first new one
    text += "".join(row.to_json() + "\n" for row in rows)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would stick to a file that is committed
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def latest_ladder(
    rows: Sequence[Row],
    gpu: str | None = None,
    *,
    size: int | tuple[int, int, int] = 4096,
    layout: str = "NT",
    dtype: str = "bf16",
    precision: str = "ieee",
    accumulate: str | None = None,
) -> list[Row]:
    """The newest row of each Triton rung (its first config) and of cuBLAS, slowest rung first.

    Races of a few rungs (`--only`) don't displace fuller ones.

    Without `gpu`, the GPU of the newest row. What was refused, failed or wrong is there too, as a
    row without a time, unless it was only skipped as too slow. Empty if nothing was measured.
    """
    case = _case(size, layout, dtype, precision, accumulate)
    return _newest([row for row in rows if row.ladder != CUDA], case, gpu)


def latest_compare(
    rows: Sequence[Row],
    gpu: str | None = None,
    *,
    size: int | tuple[int, int, int] = 4096,
    layout: str = "NT",
    dtype: str = "fp16",
    accumulate: str | None = None,
) -> list[Row]:
    """The same of both ladders: Triton's rungs, CUDA's, cuBLAS; only of races with both."""
    races = {(row.time, row.environment.gpu) for row in rows if row.ladder == CUDA}
    case = _case(size, layout, dtype, "ieee", accumulate)
    return _newest([row for row in rows if (row.time, row.environment.gpu) in races], case, gpu)


def _case(size, layout, dtype, precision, accumulate) -> Case:
    M, N, K = (size,) * 3 if isinstance(size, int) else size
    return Case(M, N, K, layout, dtype, accumulate or ACCUMULATE[dtype], precision)


def _newest(rows: Sequence[Row], case: Case, gpu: str | None) -> list[Row]:
    """The newest row of each rung's first config and of cuBLAS: Triton's, CUDA's, cuBLAS.

    A race of less than half the rungs counts only for those that no fuller race has: its other rows
    would stand beside a cuBLAS and a rung below that they didn't run with.
    """
    rows = [
        row
        for row in rows
        if row.competitor in (row.rung or REFERENCE, HALF)
        and row.outcome != "skipped"
        and row.mode == "sustained"
        and row.case == case
    ]
    timed = collections.Counter((row.environment.gpu, row.time) for row in rows if row.us)
    largest = max(timed.values(), default=0)

    def rank(row: Row) -> tuple[bool, str]:
        return 2 * timed[row.environment.gpu, row.time] >= largest, row.time

    newest: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=rank):
        newest[row.environment.gpu, row.competitor] = row
    if not newest:
        return []
    if gpu is None:
        gpu = max(newest.values(), key=lambda row: row.time).environment.gpu
    own = [row for (name, _), row in newest.items() if name == gpu]
    places = {TRITON: 0, CUDA: 1, None: 2}
    return sorted(own, key=lambda row: (places[row.ladder], row.number or 0, row.competitor))
