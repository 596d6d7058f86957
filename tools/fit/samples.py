"""Measured times of candidates, as `python -m perf search` writes them: one JSON object a line."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from perf.case import ACCUMULATE, FAST, Case
from perf.competitors import problem_of
from tritemm.problem import Device, Problem
from tritemm.problem.config import Config, config_of
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel


@dataclasses.dataclass(frozen=True)
class Sample:
    """That `kernel` takes `seconds` for `problem` in `config`.

    `search` numbers the searches of all files: two of them may have had different cards, clocks or
    code, so that only times of one search say which candidate is faster. `scaled`: it was timed
    before the clock had settled and is taken to slow down as others did, so the time may be too
    long: what draws the least power slows down the least.
    """

    problem: Problem
    kernel: Kernel
    config: Config
    seconds: float
    search: int = 0
    scaled: bool = False


def read(paths: Iterable[Path], device: Device) -> list[Sample]:
    """The samples in JSON-lines files, compressed where a name ends in .gz, measured on `device`.

    Lines without a time, and those of other libraries or of types that tritemm lacks, are left
    out. ValueError names the file, and the line of what is no JSON object; OSError as of `open`.
    """
    rungs = {rung.name: rung for rung in RUNGS}
    samples, search = [], 0
    for path in paths:
        search += 1
        try:
            data = Path(path).read_bytes()
            text = (gzip.decompress(data) if Path(path).suffix == ".gz" else data).decode()
        except (EOFError, UnicodeDecodeError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is no text: {error}") from error
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                row = json.loads(line)
                search += "command" in row
                known = row.get("us") and row["kernel"] in rungs and row["dtype"] in ACCUMULATE
                if known:
                    samples.append(_sample(row, rungs, device, search))
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
    return samples


def _sample(row: Mapping, rungs: Mapping[str, Kernel], device: Device, search: int) -> Sample:
    seconds = row["us"] / 1e6
    if not 0 < seconds < math.inf:
        raise ValueError(f"us is {row['us']}")
    config = config_of(row["config"])
    rung = rungs[_rung_of(row["kernel"], config)]
    return Sample(_asked(row, device), rung, config, seconds, search, row.get("scaled", False))


def _rung_of(name: str, config: Config) -> str:
    """The rung that has a row's config: rows may be older than what `cluster` was divided into."""
    if name != "cluster":
        return name
    if config.SPLIT_K > 1:
        return "multicast_split_k"
    return "cluster_pingpong" if config.num_warps == 4 else name


def _asked(row: Mapping, device: Device) -> Problem:
    """The problem of a line: contiguous operands."""
    dtype, how = row["dtype"], row.get("accumulate")
    case = Case(
        *(row[name] for name in ("M", "N", "K")),
        layout=row["layout"],
        dtype=dtype,
        accumulate=ACCUMULATE[dtype] if how in (None, FAST) else how,
        precision=row.get("precision", "ieee"),
        batch=row.get("batch", 1),
        out_dtype=row["out"],
        scaling=row.get("scaling"),
    )
    return _problem(case, device, how)


_problem = functools.lru_cache(maxsize=1024)(problem_of)
