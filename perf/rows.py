"""The measurements' file format: JSON lines, one row per competitor and case, committed.

Schema 1. Times are microseconds per product; "quantiles" are objects {p20, p50, p80} over rounds.
A field that is added gets a default, so that older rows stay readable; the schema's number changes
when a field changes its meaning. Fields with a star are younger than the first rows.

    schema        1
    experiment *  the command: ladder (the default), suite, random, regret, sweep, host, roofline,
                  model, linear, serving; invariant: `suite --batch-invariant`; peers and random
                  peers: `suite` and `random` with `--peers`
    run *         when the command began; the same for all its rows. UTC, ISO 8601
    time          the same for all rows of one race. UTC, ISO 8601
    command       what was run
    mode          "sustained": CUDA graphs over rotating buffers, at the settled clock;
                  "burst": one launch at a time on a cold L2;
                  "host eager", "host out", "host eager first", "host out first": Python's time per
                  call, without and with out=, of a shape seen before or for the first time;
                  "host call ...", "host routed ...": the same of the kinds in `perf.host_calls`
                  and `perf.host_routing`;
                  "model eager", "model compiled", "model graph": steps of a whole model in a row
    environment   {gpu, driver, cuda, torch, triton, cublas, commit, dirty}; null is unknown
    case          {M, N, K, layout, dtype, accumulate, precision, batch *, out_dtype *, ending *};
                  as in `perf.case`; out_dtype null: the operands' own; ending: what follows the
                  product, absent where nothing does. Of model: the product of its head
    problem *     {id, class, name} of the suite's line, the random problem, the kind of call, the
                  linear layer, or the model and what it does; of serving, class and name are the
                  model and the layer; else null
    competitor    a rung's word: its first config; `word[1]` ...: its other configs; `word 128x...`:
                  a config from a file; of suite, random, serving and host: the `kernel=` that
                  `tritemm.matmul` was given; of regret: "auto" and, as from a file, the best of a
                  search; of invariant: "auto, batch invariant" too; of linear: "auto" and the other
                  ways of `perf.linear_ways`; of peers, "cublaslt" and "quack" too (`perf.peers`);
                  of "host routed ...": "enabled" is torch's call inside
                  `tritemm.enabled()`; "cublas": the torch call that a user would write
                  (`perf.reference`), 16-bit types accumulated in fp32; "cublas again": the null
                  test; "cublas fp16": accumulated in fp16, where `accumulate` is fp16
    ladder *      "triton" or "cuda" (`cuda_reference`); null for cuBLAS; absent from the oldest
                  rows, whose rungs are Triton's
    rung, number  the rung's word and its number on its ladder; null for cuBLAS. Of model: "auto"
                  and null, for many products
    code *        hash of the rung's sources (`perf.sources`); absent from older rows and for cuBLAS
    config        the fields of `tritemm.spec.Config`; null for cuBLAS; of "cublaslt": the index of
                  the algorithm that was kept, and the microseconds of each in the list, null where
                  it can't run; of "quack": its version and how it was asked
    outcome       measured, refused (by the kernel), failed (to compile or launch), wrong (output),
                  skipped (too slow); only "measured" rows have what follows `worst`
    reason        why it was not measured; for cuBLAS, how it missed the error bound; else null
    worst         largest error over its bound (`tritemm.budget`; of model: `perf.model_agreement`);
                  null if unknown or not finite
    agreement *   of model: {logits or loss and gradients: norm of the error against the model in
                  fp32, over that of the values; "... to torch": that of the difference from torch's
                  results}; null is not finite. Absent elsewhere
    launches      products per timed replay; of model: steps
    rounds        rounds it took part in
    us            quantiles
    tflops        of us.p50, 2 batch M N K operations
    gbs *         of us.p50, GB/s if each element of A, B and C is moved once
    roof *        {tflops, gbs}: the dense rate of the type at the clock that a large bf16 product
                  settles at (of roofline: the type's own), and that of a copy; measured by the
                  same command (`perf.roof`)
    ratio         quantiles of cuBLAS's time over this one's, within rounds
    null          quantiles of the null test's ratio
    below         the competitor of the next rung below on the same ladder that was timed (its
                  fastest config); of a CUDA rung the one that it adds to, if that was timed
    ratio_below   quantiles of that one's time over this one's, within rounds
    versus *      {competitor: quantiles of its time over this one's, within rounds}: the twins on
                  the other ladder (`perf.twins.rivals`) and "cublas fp16"; of regret's "auto", the
                  others of its race; of batch invariance, "auto"; of linear's "auto", torch's other
                  ways; of peers, those; null without any
    sm_mhz, power_w, temperature_c   medians, read while it was timed; null without NVML
    settled_mhz   SM clock after the warm-up
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .case import Case
from .machine import Environment
from .roof import Roof
from .stats import Quantiles

SCHEMA = 1
RESULTS = Path(__file__).resolve().parent / "results"

TRITON, CUDA = "triton", "cuda"
#: The reference; under a second name (how far that one's ratio is from 1 is the noise); and with
#: an fp16 accumulator.
REFERENCE, NULL, HALF = "cublas", "cublas again", "cublas fp16"
#: Who else multiplies, beside cuBLAS as torch calls it, by the words of `--peers`.
PEERS = {"lt": "cublaslt", "quack": "quack"}
#: `tritemm.matmul(batch_invariant=True)`, which races beside "auto".
INVARIANT = "auto, batch invariant"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heading:
    """What the rows of one race have in common; see the module."""

    schema: int = SCHEMA
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
    rung: str | None
    number: int | None
    config: dict[str, Any] | None
    outcome: str
    ladder: str | None = None
    code: str | None = None
    reason: str | None = None
    worst: float | None = None
    agreement: dict[str, float | None] | None = None
    launches: int | None = None
    rounds: int | None = None
    us: Quantiles | None = None
    tflops: float | None = None
    gbs: float | None = None
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
    def tie(self) -> bool:
        """Whether the ratio to cuBLAS says nothing: 1 is in its spread, or it is in the null's."""
        if self.ratio is None:
            return False
        return self.ratio.tie or (self.null is not None and self.null.covers(self.ratio.p50))

    @property
    def of_roof(self) -> float | None:
        """The roof's time over the measured one."""
        return self.roof.floor(self.case) / self.us.p50 if self.roof and self.us else None

    def to_json(self) -> str:
        """One line. For an agreement, a code or an ending that isn't there nothing stands, as in
        older rows."""
        fields = dataclasses.asdict(self)
        for name in ("agreement", "code"):
            if fields[name] is None:
                del fields[name]
        if fields["case"]["ending"] is None:
            del fields["case"]["ending"]
        return json.dumps(fields, allow_nan=False)

    @staticmethod
    def from_json(line: str) -> Row:
        """Raises ValueError on what is not a row of this schema."""
        try:
            fields = json.loads(line)
            if fields["schema"] != SCHEMA:
                raise ValueError(f"schema {fields['schema']}; this reads {SCHEMA}")
            fields["environment"] = Environment(**fields["environment"])
            fields["case"] = Case(**fields["case"])
            if fields.get("roof"):
                fields["roof"] = Roof(**fields["roof"])
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
