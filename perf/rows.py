"""The measurements' file format: JSON lines, compressed where the name ends in .gz; committed.

Schema 2. A line with an `environment` is the heading of a run: it holds what all rows below it
share, up to the next heading. Every other line is a race, all or none of which is there: what its
rows share, and `rows`, one per competitor. So files can be joined by `cat`, and
`pandas.json_normalize(races, "rows", ["case", "problem"])` makes a table of them.

Times are microseconds per product; "quantiles" are [p20, p50, p80] over rounds. Numbers have seven
significant digits. What is null or has its default is left out; a new field gets a default, and
the schema's number changes when a field changes its meaning.

A heading
    schema        2
    experiment    the command: race, suite, random, serving, ladder, sweep, host, joules, model,
                  roofline, regret, moe, experts, errors; linear, scaled: `race` of perf/linear.csv
                  and of perf/scaled.csv; invariant: `suite --batch-invariant`; peers and random
                  peers: `suite` and `random` with `--peers`
    run           when the command began, UTC, ISO 8601; absent from the oldest rows
    command       what was run
    environment   {gpu, driver, cuda, torch, triton, cublas, commit, dirty}; null is unknown

A race
    time          when it began. UTC, ISO 8601
    mode          "sustained": CUDA graphs over rotating buffers, at the settled clock;
                  "burst": one launch at a time on a cold L2;
                  "settled", "in bursts": one kernel alone for seconds, and for some 1.5 ms between
                  pauses (`perf.energy`);
                  "host eager", "host out": Python's time per call, without and with out=; older
                  rows have "host eager first" and "host out first", of a shape's first call;
                  "host call ...", "host routed ...": the same of calls as models make them, and of
                  torch's own calls with and without `tritemm.enabled()`;
                  "model eager", "model compiled", "model graph": steps of a whole model in a row;
                  "layer": a layer of experts in a row, as CUDA graphs;
                  "errors": one product, which is not timed
    case          {M, N, K, layout, dtype, accumulate, precision, batch, out_dtype, ending, groups,
                  scaling}, as in `perf.case`. Of model: the product of its head; of experts: a
                  product of as many operations
    problem       {id, class, name} of the file's line, and its weight if it has one; of the random
                  problem, the kind of call, the linear layer, or the model and what it does; of
                  serving, moe and experts, class and name are the model and the layer; of errors
                  class is what `perf.grading` calls the operands
    roof          [TFLOP/s, GB/s]: the dense rate of the type at the clock that a large bf16 product
                  settles at (of roofline: the type's own), and that of a copy; measured by the
                  same command (`perf.roof`)
    null          quantiles of the null test's ratio
    settled_mhz   SM clock after the warm-up

A row
    competitor    a rung's word: its first config; `word[1]` ...: its other configs; `word 128x...`:
                  a config from a file; of suite, random, serving and host: the `kernel=` that
                  `tritemm.matmul` was given; of regret: "auto" and, as from a file, the best of a
                  search; of invariant: "auto, batch invariant" too; of linear: "auto" and torch's
                  other ways; of peers, "cublaslt" and "quack" too; of "host routed ...":
                  "enabled" is torch's call inside `tritemm.enabled()`; "cublas": the torch call
                  that a user would write (`perf.reference`), 16-bit types accumulated in fp32;
                  "cublas again": the null test; "cublas fp16": accumulated in fp16, where
                  `accumulate` is fp16; with scales "auto, fast" and "cublas fast" are those with
                  `use_fast_accum=True`, and int8's "cublas" leaves them out; of moe "cublas" is
                  `torch._grouped_mm`, "dense ..." is one dense product of as many operations, by
                  torch and by tritemm; of experts "cublas" and "batched_mm" are transformers' ways,
                  the first its "grouped_mm"; of errors, the precision that tritemm was asked for
    ladder        "triton" or "cuda" (`cuda_reference`); absent for cuBLAS
    rung, number  the rung's word and its number on its ladder; absent for cuBLAS. Of model: "auto"
                  and none, for many products
    code          hash of the rung's sources (`perf.sources`); absent from the oldest rows
    config        the fields of `tritemm.spec.Config`; of peers: the index of the algorithm that
                  was kept, and the microseconds of each in the list, null where it can't run; of
                  "quack" the version and the names of its configs, too
    outcome       measured (the default), refused (by the kernel), failed (to compile or launch),
                  wrong (output), skipped (too slow); what has no time has nothing below `worst`
    reason        why it was not measured; for cuBLAS, how it missed the error bound
    worst         largest error over its bound (`tritemm.budget`; of model: torch's own error)
    agreement     of model: {logits or loss and gradients: norm of the error against the model in
                  fp32, over that of the values; "... to torch", of some: that of the difference
                  from torch's results}; null is not finite
    errors        of errors: {largest, rms} error of an element, in units of 2**-24 (fp64: 2**-53)
                  of sum |a| |b|; rms is the root mean square
    multiplied    of errors: "ieee" where tritemm chose that in place of the competitor, and "again"
                  where it multiplied so once more, because of what the operands hold
    launches      products per timed replay; of model: steps; of experts: graphs
    rounds        rounds it took part in
    us            quantiles
    mj            of joules: quantiles of millijoules per product, by the card's meter
    ratio         quantiles of cuBLAS's time over this one's, within rounds
    below         the competitor of the next rung below on the same ladder that was timed (its
                  fastest config); of a CUDA rung the one that it adds to, if that was timed
    ratio_below   quantiles of that one's time over this one's, within rounds
    versus        {competitor: quantiles of its time over this one's, within rounds}: the twins on
                  the other ladder (`competitors.rivals`) and "cublas fp16"; with scales "cublas
                  fast"; of regret's "auto", the others of its race; of batch invariance, "auto"; of
                  linear's "auto", torch's other ways; of peers, those; of moe, the dense products
    sm_mhz, power_w, temperature_c   medians, read while it was timed; of joules the watts are the
                  meter's, of what multiplies
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .case import FAST, Case
from .groups import Groups
from .machine import Environment
from .roof import Roof
from .stats import Quantiles

SCHEMA = 2
RESULTS = Path(__file__).resolve().parent / "results"

TRITON, CUDA = "triton", "cuda"
#: The reference; under a second name (how far that one's ratio is from 1 is the noise); and with
#: an fp16 accumulator.
REFERENCE, NULL, HALF = "cublas", "cublas again", "cublas fp16"
#: With `use_fast_accum=True`: torch's `_scaled_mm`, and `tritemm.scaled_mm` as "auto".
TORCH_FAST, AUTO_FAST = f"{REFERENCE} {FAST}", f"auto, {FAST}"
#: The competitors beside cuBLAS as torch calls it, by the words of `--peers`.
PEERS = {"lt": "cublaslt", "quack": "quack"}
#: What names of dense products begin with that race beside those of groups.
DENSE = "dense "
#: `tritemm.matmul(batch_invariant=True)`, which races beside "auto".
INVARIANT = "auto, batch invariant"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heading:
    """What the rows of one race have in common; see the module."""

    experiment: str = "ladder"
    run: str | None = None
    time: str
    command: str
    mode: str
    environment: Environment
    case: Case
    problem: dict[str, str] | None = None
    roof: Roof | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Heading):
    """See the module."""

    competitor: str
    ladder: str | None = None
    rung: str | None = None
    number: int | None = None
    code: str | None = None
    config: dict[str, Any] | None = None
    outcome: str = "measured"
    reason: str | None = None
    worst: float | None = None
    agreement: dict[str, float | None] | None = None
    errors: dict[str, float] | None = None
    multiplied: str | None = None
    launches: int | None = None
    rounds: int | None = None
    us: Quantiles | None = None
    mj: Quantiles | None = None
    ratio: Quantiles | None = None
    null: Quantiles | None = None
    below: str | None = None
    ratio_below: Quantiles | None = None
    versus: dict[str, Quantiles] | None = None
    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    settled_mhz: float | None = None

    @property
    def id(self) -> str | None:
        """The problem's."""
        return self.problem and self.problem["id"]

    @property
    def tflops(self) -> float | None:
        """The speed of the median."""
        return self.case.flops / self.us.p50 / 1e6 if self.us else None

    @property
    def gbs(self) -> float | None:
        """GB/s, if each element of A, B and C is moved once."""
        return self.case.bytes / self.us.p50 / 1e3 if self.us else None

    @property
    def tie(self) -> bool:
        """Whether the ratio to cuBLAS says nothing: 1 is in its spread, or it is in the null's."""
        if self.ratio is None:
            return False
        return self.ratio.tie or (self.null is not None and self.null.covers(self.ratio.p50))

    @property
    def of_roof(self) -> float | None:
        """The roof's time over the measured one."""
        return self.roof.floor(self.case) / self.us.p50 if self.roof and self.us else None


#: The fields of a heading and of a race; a row's are the others.
RUN = ("experiment", "run", "command", "environment")
RACE = ("time", "mode", "case", "problem", "roof", "null", "settled_mhz")
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Row)}
_QUANTILES = ("us", "mj", "ratio", "null", "ratio_below")


def lines(rows: Iterable[Row], below: str | None = None) -> Iterator[str]:
    """The lines of a file; without the heading if they are `below` the same one."""
    for run, own in itertools.groupby(rows, lambda row: _fields(row, RUN)):
        heading = _line({"schema": SCHEMA} | run)
        if heading != below:
            yield heading
        below = heading
        for race, entries in itertools.groupby(own, lambda row: _fields(row, RACE[:5])):
            entries = list(entries)
            timed = next((row for row in entries if row.us), entries[0])
            found = [_fields(row, _DEFAULTS.keys() - {*RUN, *RACE}) for row in entries]
            yield _line(race | _fields(timed, RACE[5:]) | {"rows": found})


def _fields(row: Row, names: Iterable[str]) -> dict[str, Any]:
    """Those of the fields that differ from their defaults, in the row's order."""
    values = {name: getattr(row, name) for name in _DEFAULTS if name in names}
    return {k: _plain(v) for k, v in values.items() if v is not None and v != _DEFAULTS[k]}


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, Roof):
        return [_plain(each) for each in (value.tflops, value.gbs)]
    if dataclasses.is_dataclass(value):
        known = {field.name: field.default for field in dataclasses.fields(value)}
        return {k: _plain(v) for k, d in known.items() if (v := getattr(value, k)) != d}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def read(*paths: Path) -> list[Row]:
    """The rows of the files, in order; an unreadable line (a torn write) is warned of and left out.

    Example:
        rows = read(*RESULTS.glob("*.jsonl.gz"))
    """
    rows: list[Row] = []
    for path in paths:
        run: dict[str, Any] = {}
        for number, line in enumerate(_text(Path(path)).splitlines(), 1):
            try:
                fields = json.loads(line)
                if "environment" in fields:
                    run = _heading(fields)
                else:
                    rows += _race(run, fields)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                told = f"{path}, line {number}: no line of this schema: {error!r}; left out"
                warnings.warn(told, stacklevel=2)
    return rows


def recorded() -> list[Row]:
    """Those of the repository."""
    return read(*sorted([*RESULTS.glob("*.jsonl"), *RESULTS.glob("*.jsonl.gz")]))


def _heading(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.pop("schema") != SCHEMA:
        raise ValueError(f"this reads schema {SCHEMA}")
    return fields | {"environment": Environment(**fields["environment"])}


def _race(run: dict[str, Any], fields: dict[str, Any]) -> list[Row]:
    case = fields.pop("case")
    groups = case.pop("groups", None)
    shared = run | {"case": Case(**case, groups=groups and Groups(**groups))}
    roof, entries = fields.pop("roof", None), fields.pop("rows")
    settled = {name: fields.pop(name, None) for name in RACE[5:]}
    shared |= fields | {"roof": roof and Roof(*roof)}
    return [Row(**_entry(shared | (settled if "us" in entry else {}) | entry)) for entry in entries]


def _entry(fields: dict[str, Any]) -> dict[str, Any]:
    found = {name: Quantiles(*fields[name]) for name in _QUANTILES if fields.get(name)}
    if versus := fields.get("versus"):
        found["versus"] = {name: Quantiles(*each) for name, each in versus.items()}
    return fields | found


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to the file, all or none: what was there stays, also if this is interrupted."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _text(path) if path.exists() else ""
    if text and not text.endswith("\n"):
        text += "\n"  # a torn last line must not swallow the first new one
    heading = next((line for line in reversed(text.splitlines()) if '"environment"' in line), None)
    text += "".join(f"{line}\n" for line in lines(rows, heading))
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would stick to a file that is committed
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode()
