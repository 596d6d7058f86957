"""Measures the timelines: `python -m docs.record timelines`, on a GPU with WGMMA.

Runs each of the `RUNGS` as it is and stamped (`docs.timeline.stamps`), on a warm L2, and tells what
one SM did. How many programs the SM gets differs from launch to launch: the stamped launch with the
median time is drawn, and the median time of those launches without stamps in which the SM had as
many programs is told beside it.
"""

import contextlib
import dataclasses
import json
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from perf.case import Case
from perf.machine import environment
from perf.operands import operands
from tritemm import rungs
from tritemm.problem import Problem

from . import stamps

DATA = Path(__file__).with_name("measured.json")
#: What is looked at, and in what order it is drawn.
RUNGS = ("tiled", "pipelined", "persistent", "warp_specialized", "pingpong")
#: A short K, so that a tile's epilogue is as large a part as its products.
CASE = Case(4096, 4096, 512, "NT", "bf16")
#: Threads of a warp and of a warpgroup.
WARP, GROUP = 32, 128
#: Launches before those that are looked at, and how many these are: an odd number.
WARM, LAUNCHES = 3, 31


@dataclasses.dataclass(frozen=True)
class Row:
    """A warp's stamps: the program's number and the warp's in it; cycles of the SM's clock since
    the first beginning of all, and what begins then, as a place in `stamps.ACTIVITIES`."""

    program: int
    warp: int
    at: list[int]
    activity: list[int]


def measure(what: str, rungs: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """What is known after each rung; RuntimeError where there is no GPU that can do it."""
    if torch.cuda.get_device_capability() != (9, 0):
        raise RuntimeError(f"{what} need a GPU with WGMMA (sm_90): these rungs use it")
    found = {"environment": dataclasses.asdict(environment()), "case": dataclasses.asdict(CASE)}
    found["rungs"] = json.loads(DATA.read_text())["rungs"] if DATA.exists() else {}
    for rung in rungs or RUNGS:
        found["rungs"][rung] = timeline(rung)
        yield found


def timeline(rung: str) -> dict[str, Any]:
    """What a rung's first config did on the SM that is looked at, and how long its launch took."""
    kernel, tensors = rungs.find(rung), operands(CASE, "cuda")
    problem = Problem.of(*tensors)
    config = kernel.configs(problem)[0]

    def launched(events: Sequence[stamps.Event]) -> list[list[Row]]:
        with _stamps(kernel.fn, events) as array:
            for _ in range(WARM):
                kernel.launch(problem, config, *tensors)
            found = []
            for _ in range(LAUNCHES):
                array.zero_()
                kernel.launch(problem, config, *tensors)
                found.append(decoded(array.cpu().numpy().tobytes()))
            return sorted(found, key=end)

    undisturbed, every = launched(stamps.ENDS), launched(stamps.EVENTS)[LAUNCHES // 2]
    alike = [rows for rows in undisturbed if programs(rows) == programs(every)]
    if not alike:
        raise RuntimeError(f"{rung}: the SM never had {programs(every)} programs without stamps")
    a, b, c = tensors
    torch.testing.assert_close(c, a @ b)
    return {
        "config": str(config),
        "cycles": end(alike[len(alike) // 2]),
        "rows": [dataclasses.asdict(row) for row in representatives(every)],
    }


def programs(rows: Sequence[Row]) -> int:
    """How many the SM had."""
    return len({row.program for row in rows})


def end(rows: Sequence[Row]) -> int:
    """When the SM's last stamp was made."""
    return max(row.at[-1] for row in rows)


def representatives(rows: Sequence[Row]) -> list[Row]:
    """The first warp of each warpgroup of each program: the others do the same."""
    found: dict[tuple[int, int], Row] = {}
    for row in sorted(rows, key=lambda row: row.warp):
        found.setdefault((row.program, row.warp * WARP // GROUP), row)
    return sorted(found.values(), key=lambda row: (row.at[0], row.warp))


@contextlib.contextmanager
def _stamps(fn: Any, events: Sequence[stamps.Event]) -> Iterator[torch.Tensor]:
    """Triton compiles `fn` anew, with stamps; yields the array that they are left in."""
    memory = torch.zeros(stamps.BYTES + stamps.ROW_BYTES, dtype=torch.uint8, device="cuda")
    array = memory[-memory.data_ptr() % stamps.ROW_BYTES :][: stamps.BYTES]  # rows are aligned

    def add(backend: Any, stages: dict[str, Any], *_: Any) -> None:
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: stamps.stamped(
            make(source, metadata), array.data_ptr(), events
        )

    knobs = triton.knobs
    before = knobs.cache.dir
    with tempfile.TemporaryDirectory() as folder:
        fn.device_caches.clear()
        knobs.cache.dir, knobs.runtime.add_stages_inspection_hook = folder, add
        try:
            yield array
        finally:
            knobs.cache.dir, knobs.runtime.add_stages_inspection_hook = before, None
            fn.device_caches.clear()


def decoded(raw: bytes) -> list[Row]:
    """The rows of an array, by the time of their first stamps; cycles begin with the first."""
    found = []
    for start in range(stamps.HEAD_BYTES, stamps.BYTES, stamps.ROW_BYTES):
        row = struct.iter_unpack("<QQ", raw[start : start + stamps.ROW_BYTES])
        pairs = [pair for pair in row if pair[0]]
        if len(pairs) > 1:
            found.append(pairs)
    found.sort()
    if not found:
        raise RuntimeError("no warp left a stamp")
    zero = found[0][0][0]
    return [
        Row(
            program=pairs[0][1] >> 32,
            warp=(pairs[0][1] & 0xFFFFFFFF) // WARP,
            at=[clock - zero for clock, _ in pairs[1:]],
            activity=[activity for _, activity in pairs[1:]],
        )
        for pairs in found
    ]
