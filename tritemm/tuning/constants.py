"""The numbers of the cost model: analytic for any GPU, corrected by what a GPU was measured at."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from ..problem import Device, Problem
from ..spec import Config

#: What NVIDIA's datasheets say of an architecture, and what is sustained under a large GEMM:
#: dense 16-bit FLOP per clock and SM, Hz, bytes per second of device memory.
#: A100, A10/A40, L40S, H100, B200, RTX PRO 6000.
_ARCHITECTURE = {
    (8, 0): (2048, 1.30e9, 1.8e12),
    (8, 6): (1024, 1.50e9, 0.6e12),
    (8, 9): (1024, 2.00e9, 0.8e12),
    (9, 0): (4096, 1.48e9, 3.1e12),
    (10, 0): (8192, 1.60e9, 7.2e12),
    (12, 0): (1024, 2.20e9, 1.6e12),
}
#: Rate of a type relative to 16-bit operands.
_TYPE_RATE = {torch.int8: 2.0, torch.float8_e4m3fn: 2.0, torch.float64: 1 / 15}
_FP32_RATE = {"ieee": 1 / 15, "tf32": 0.5, "tf32x3": 1 / 6, "bf16x3": 1 / 3, "bf16x6": 1 / 6}


@dataclasses.dataclass(frozen=True)
class Trait:
    """How a rung spends its time.

    `efficiency` is its share of the tensor cores' rate; `narrow` how many times slower its loads
    are when they are not 16 bytes wide; a `resident` grid has one program per SM, which walks the
    tiles; `hidden` is the share of a tile's ends that runs beside another tile's arithmetic;
    `level` runs whole rounds of tiles, and shares those of the last, incomplete one; what `rereads`
    takes B from device memory again for every row of tiles. What `exchanges` has a cluster for each
    tile, whose programs share K and the sum. Of tiles that are `alike` each load takes as long,
    whatever the tile; they have no ring, but ask for the loads of all their stages at once and wait
    for them, which takes the share `waits` of the latency, while other programs on their SM work.
    `gathering` is what adding up the parts of a split K takes, relative to other rungs. What has
    the mainloop of another rung is `like` that one: what was measured of both stands under it.
    """

    efficiency: float
    narrow: float = 1.0
    resident: bool = False
    hidden: float = 0.0
    level: bool = False
    rereads: bool = False
    exchanges: bool = False
    alike: bool = False
    waits: float = 1.0
    gathering: float = 1.0
    like: str = ""


#: Of rungs by name, from the measured ladder; the last one is for a rung that is not named.
_TRAITS = {
    "simt": Trait(0.002),
    "naive": Trait(0.04, narrow=2.0),
    "tiled": Trait(0.25, narrow=10.0),
    "swizzled": Trait(0.27, narrow=10.0),
    "pipelined": Trait(0.85, narrow=10.0),
    "tma": Trait(0.96),
    "persistent": Trait(0.98, resident=True, hidden=0.3),
    "warp_specialized": Trait(0.98, resident=True, hidden=0.4),
    "pingpong": Trait(0.99, resident=True, hidden=0.9),
    "split_k": Trait(0.98, resident=True, hidden=0.3),
    "stream_k": Trait(0.98, resident=True, hidden=0.3, level=True),
    "gemv": Trait(0.03, narrow=1.2, alike=True, waits=0.45, gathering=0.3),
    "cluster": Trait(0.98, resident=True, hidden=0.75),
    "cluster_pingpong": Trait(0.98, resident=True, hidden=0.8, like="cluster"),
    "multicast_split_k": Trait(0.98, resident=True, hidden=0.75, like="cluster"),
    "cluster_split_k": Trait(0.98, exchanges=True),
}
_UNNAMED = Trait(0.5, narrow=4.0)

_HERE = Path(__file__).parent

#: (word, BLOCK_M, BLOCK_N, BLOCK_K, warps, stages, programs of a cluster), see `key`; all 1 behind
#: the word of tiles that are alike.
Key = tuple[str, int, int, int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Constants:
    """Seconds, and bytes per second.

    `memory_rate` is the device's, `sm_memory_rate` what one SM can move from or to device memory,
    `sm_rate` what it can draw from L2. `latency`: from the request of a k-step's tiles to their
    arrival. `ends`: what a tile costs beside its k-steps and the bytes that it stores. `launch`:
    before the first k-step and after the last, in a stream of launches. `pack`: one copy kernel,
    beside its bytes. `reduction`: adding up the parts of a split K, beside their bytes; `gather`:
    as much more for each part. `exchange`: as `reduction`, between the programs of a cluster, of
    which one sends and receives `exchange_rate`. `overlap`: the share of the shorter one that
    arithmetic and loads, or work and memory traffic, add to the longer one. `boost`: how much
    faster an SM works if all others idle. `turned`: arithmetic that each operand adds that WGMMA
    can't read as it is stored, relative to the product's. `narrow_store`: how many times longer it
    takes to store C where its lines are not aligned.

    `cold`: what operands add to a launch that lie in device memory, and are a burst of requests
    each time: half of it for a megabyte, nearly all for ten.

    `power` and `traffic`: what the power limit allows, in seconds of the device per 16-bit FLOP:
    `power`, and `traffic` times 1 / BLOCK_M + 1 / BLOCK_N, for the bytes that a FLOP moves on chip.
    0 where it was not measured.

    `steps` corrects by rung and `key`: seconds of a k-step on an SM where all work, and of a
    tile's ends. `launches` corrects `launch` by rung, and `colds` corrects `cold`.
    """

    gpu: str
    memory_rate: float
    sm_memory_rate: float
    sm_rate: float
    latency: float = 0.8e-6
    ends: float = 0.5e-6
    launch: float = 2.0e-6
    pack: float = 2.0e-6
    reduction: float = 1.5e-6
    gather: float = 0.05e-6
    exchange: float = 1.0e-6
    exchange_rate: float = 25e9
    overlap: float = 0.1
    boost: float = 0.35
    turned: float = 3.7
    narrow_store: float = 2.0
    power: float = 0.0
    traffic: float = 0.0
    cold: float = 0.0
    steps: Mapping[str, Mapping[Key, tuple[float, float]]] = dataclasses.field(default_factory=dict)
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    colds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    #: The names of the plain numbers, in the order in which the file holds them.
    RATES = (
        "memory_rate", "sm_memory_rate", "sm_rate", "latency", "ends", "launch", "pack",
        "reduction", "gather", "exchange", "exchange_rate", "overlap", "boost", "turned",
        "narrow_store", "power", "traffic", "cold",
    )  # fmt: skip


#: What corrects a plain number by rung: the name of the mapping, and of the number.
BY_RUNG = {"launches": "launch", "colds": "cold"}


def trait(kernel: str) -> Trait:
    """Of the rung called `kernel`."""
    return _TRAITS.get(kernel, _UNNAMED)


def measured_as(kernel: str) -> str:
    """Under which rung's name stands what was measured of the rung called `kernel`."""
    return trait(kernel).like or kernel


def types(problem: Problem) -> str:
    """The word under which measured k-steps of the problem's types stand."""
    if problem.itemsize == 2:
        return "16-bit"
    if problem.a.dtype == torch.float32:
        return problem.precision
    return str(problem.a.dtype).removeprefix("torch.")


def key(trait: Trait, word: str, config: Config) -> Key:
    """What a k-step's time depends on beside the rung: types and loads, tile, warps, stages,
    cluster.

    `word` is `types(problem)`, with "/narrow-" behind it and the operands whose loads are less than
    16 bytes wide, "/turned-" and how many operands are, and the layouts where tiles are alike.
    """
    c = config
    if trait.alike:
        return word, 1, 1, 1, 1, 1, 1
    return word, c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, c.CLUSTER


def flop_per_clock(dtype: torch.dtype, precision: str, device: Device) -> float:
    """Dense FLOP per clock of the whole device; `precision` says how fp32 is multiplied."""
    relative = _FP32_RATE[precision] if dtype == torch.float32 else _TYPE_RATE.get(dtype, 1.0)
    return relative * _architecture(device)[0] * device.sms


def flop_rate(problem: Problem) -> float:
    """FLOP per second of the whole device for the problem's type."""
    device = problem.device
    per_clock = flop_per_clock(problem.a.dtype, problem.precision, device)
    return per_clock * _architecture(device)[1]


def flop_rate_16(device: Device) -> float:
    """FLOP per second of the whole device for 16-bit operands."""
    per_clock, clock, _ = _architecture(device)
    return per_clock * device.sms * clock


def _architecture(device: Device) -> tuple[float, float, float]:
    """The newest one that is not newer than the device."""
    exact = _ARCHITECTURE.get(device.capability)
    if exact:
        return exact
    known = [c for c in _ARCHITECTURE if c < device.capability]
    return _ARCHITECTURE[max(known, default=min(_ARCHITECTURE))]


@functools.lru_cache
def of(device: Device) -> Constants:
    """Of the device's own file, else of one with its architecture, else analytic ones."""
    guess = analytic(device)
    for path in sorted(_HERE.glob("*.json")):
        data = json.loads(path.read_text())
        if data["gpu"] == device.name and data["sms"] == device.sms:
            return from_json(data)
        if tuple(data["capability"]) == device.capability:
            rate = analytic(device).memory_rate
            guess = dataclasses.replace(from_json(data), gpu=device.name, memory_rate=rate)
    return guess


def path_of(device: Device) -> Path:
    """The file of the device's constants, which need not be there."""
    return _HERE / f"{'-'.join(device.name.lower().split())}.json"


def analytic(device: Device) -> Constants:
    """What can be said of a device that was never measured."""
    _, clock, memory = _architecture(device)
    # An SM reads 64 bytes per clock from L2 at best; what its neighbours leave it is 56.
    sm_rate = 56 * clock
    return Constants(device.name, memory, min(sm_rate, 2.8 * memory / device.sms), sm_rate)


def from_json(data: Mapping) -> Constants:
    """The constants that `to_json` wrote."""
    steps = {
        kernel: {_parse(text): tuple(pair) for text, pair in table.items()}
        for kernel, table in data["steps"].items()
    }
    by_rung = {name: data[name] for name in BY_RUNG}
    return Constants(data["gpu"], **data["rates"], steps=steps, **by_rung)


def to_json(constants: Constants, device: Device) -> dict:
    """Of `constants`, found on `device`."""
    return {
        "gpu": device.name,
        "capability": list(device.capability),
        "sms": device.sms,
        "units": "seconds, bytes per second; steps: types, tile, warps, stages, cluster: "
        "seconds of a k-step on one SM, and of a tile beside its k-steps and stores; "
        "1x1x1: of a load's share of an element, in any tile",
        "rates": {name: _short(getattr(constants, name)) for name in Constants.RATES},
        **{
            name: {k: _short(v) for k, v in sorted(getattr(constants, name).items())}
            for name in BY_RUNG
        },
        "steps": {
            kernel: {_text(k): [_short(v) for v in pair] for k, pair in sorted(table.items())}
            for kernel, table in sorted(constants.steps.items())
        },
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _text(k: Key) -> str:
    word, m, n, depth, warps, stages, cluster = k
    return f"{word} {m}x{n}x{depth} w{warps} s{stages}" + (f" c{cluster}" if cluster > 1 else "")


def _parse(text: str) -> Key:
    word, tile, *more = text.split()
    warps, stages, cluster = (int(each[1:]) for each in (*more, "c1")[:3])
    return word, *(int(n) for n in tile.split("x")), warps, stages, cluster
