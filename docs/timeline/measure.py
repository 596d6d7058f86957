"""Measures the timelines: `python -m docs.timeline`, on a GPU with WGMMA.

Runs each of the `RUNGS` as it is and stamped (`docs.timeline.stamps`), on a warm L2, and leaves in
docs/timeline/<gpu>.json what one SM did. How many programs the SM gets differs from launch to
launch: the stamped launch with the median time is drawn, and the median time of those launches
without stamps in which the SM had as many programs is told beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from perf.case import Case
from perf.machine import environment, slug
from perf.operands import operands
from tritemm import rungs
from tritemm.problem import Problem

from . import stamps

FOLDER = Path(__file__).resolve().parent
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


def main() -> int:
    """The exit status: 0, or 2 where there is no GPU that can do it."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("timelines need a GPU with WGMMA (sm_90): these rungs use it", file=sys.stderr)
        return 2
    name = slug(torch.cuda.get_device_name())
    found = {"environment": dataclasses.asdict(environment()), "case": dataclasses.asdict(CASE)}
    found["rungs"] = {rung: timeline(rung) for rung in RUNGS}
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(found, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    for rung, line in found["rungs"].items():
        with_stamps = max(row["at"][-1] for row in line["rows"])
        print(f"{rung:17} {line['cycles']} cycles, with stamps {with_stamps}; {line['config']}")
    print(f"wrote {path.name}")
    return 0


def timeline(rung: str) -> dict[str, Any]:
    """What a rung's first config did on the SM that is looked at, and how long its launch took."""
    kernel, tensors = rungs.find(rung), operands(CASE, "cuda")
    problem = Problem.of(*tensors)
    config = kernel.configs(problem)[0]

    def launched(events: Sequence[stamps.Event]) -> list[list[Row]]:
        with _compiled_with_stamps(kernel.fn, events) as compiled:
            for _ in range(WARM):
                kernel.launch(problem, config, *tensors)
            array, found = _Array(compiled()), []
            for _ in range(LAUNCHES):
                array.clear()
                kernel.launch(problem, config, *tensors)
                torch.cuda.synchronize()
                found.append(array.rows())
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
def _compiled_with_stamps(fn: Any, events: Sequence[stamps.Event]) -> Iterator[Callable[[], Any]]:
    """Triton compiles `fn` anew, with stamps; yields what gives the compiled kernel."""

    def add(backend: Any, stages: dict[str, Any], *_: Any) -> None:
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: stamps.stamped(make(source, metadata), events)

    knobs = triton.knobs
    before = knobs.cache.dir
    with tempfile.TemporaryDirectory() as folder:
        fn.device_caches.clear()
        knobs.cache.dir, knobs.runtime.add_stages_inspection_hook = folder, add
        try:
            yield lambda: next(iter(fn.device_caches[torch.cuda.current_device()][0].values()))
        finally:
            knobs.cache.dir, knobs.runtime.add_stages_inspection_hook = before, None
            fn.device_caches.clear()


class _Array:
    """The stamps of a loaded kernel, in the GPU's memory."""

    def __init__(self, compiled: Any):
        self._driver, self._at, size = (
            ctypes.CDLL("libcuda.so.1"),
            ctypes.c_uint64(),
            ctypes.c_size_t(),
        )
        self._do(
            "cuModuleGetGlobal_v2", ctypes.byref(self._at), ctypes.byref(size),
            ctypes.c_void_p(compiled.module), stamps.NAME.encode(),
        )  # fmt: skip

    def clear(self) -> None:
        self._do("cuMemsetD8_v2", self._at, 0, ctypes.c_size_t(stamps.BYTES))

    def rows(self) -> list[Row]:
        """Those that have stamps, by their programs' beginnings."""
        raw = ctypes.create_string_buffer(stamps.BYTES)
        self._do("cuMemcpyDtoH_v2", raw, self._at, ctypes.c_size_t(stamps.BYTES))
        return decoded(raw.raw)

    def _do(self, name: str, *args: Any) -> None:
        if status := getattr(self._driver, name)(*args):
            raise RuntimeError(f"{name} failed with {status}")


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
