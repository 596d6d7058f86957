"""The generated parts of docs/cost_model.md: the model's numbers, and one prediction by hand.

The example is worked out here from the numbers alone, as a second opinion on the model;
`tests/test_cost_model.py` holds the two against each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

from perf.case import Case
from perf.operands import operands
from tritemm.arch import gpus
from tritemm.dispatch.cost_model import constants
from tritemm.dispatch.cost_model.fit import Quality, quality
from tritemm.dispatch.cost_model.kind import kind_of
from tritemm.dispatch.cost_model.model import BRIEF
from tritemm.dispatch.cost_model.samples import Sample, read
from tritemm.problem import Problem
from tritemm.problem.config import Config
from tritemm.rungs import find

ROOT = Path(__file__).resolve().parent.parent
GPU = gpus.file_of("NVIDIA H200")
SEARCHES = ROOT / "perf" / "results" / "search" / f"{gpus.path_of(GPU['gpu']).stem}.jsonl.gz"
#: The output projection of Llama 3 8B, on 8192 tokens.
CASE = Case(8192, 4096, 4096, "NT")
RUNG = find("warp_specialized")
CONFIG = Config(128, 256, 64, num_warps=8, num_stages=3, ORDER="grouped")
#: Of what bounds every kernel: what it is, and in which unit they are shown.
PHYSICS = {
    "clock": ("of the SMs, once a bf16 product of 8192³ has settled", 1e6, "MHz"),
    "copy_rate": ("of a copy of 2 GiB; bytes that are read and written", 1e9, "GB/s"),
    "launch": ("of a kernel that does next to nothing, one of many in a CUDA graph", 1e-6, "µs"),
    "l2": ("of operands that L2, of 50 MB, keeps beside all else; assumed", 2**20, "MiB"),
}
#: Plain numbers that are not seconds.
PLAIN = (
    "straddle", "off_sector", "overlap", "throttle", "boost", "turned", "narrow_store", "padding",
)  # fmt: skip


def parts() -> dict[str, str]:
    """The generated parts of the page, by name."""
    return {
        "cost model example": example_text(),
        "cost model physics": physics(),
        "cost model fitted": fitted(),
        "cost model quality": f"    {measured_quality()}",
    }


def problem() -> Problem:
    """The example's, on the GPU."""
    return Problem.of(*operands(CASE, "meta"), device=gpus.device_of(GPU))


def example() -> dict[str, tuple[str, float]]:
    """Each part of the prediction by its name: how it comes about, and its seconds."""
    asked = problem()
    device, numbers = asked.device, constants.of(asked.device)
    M, N, K = asked.M, asked.N, asked.K
    word = kind_of(asked).word(RUNG.cost)
    factor, late, hungry = numbers.tiles[RUNG.name][constants.key(RUNG.cost, word, CONFIG)]
    m, n, k = CONFIG.BLOCK_M, CONFIG.BLOCK_N, CONFIG.BLOCK_K
    tiles = -(-M // m) * -(-N // n)
    rounds, depth = -(-tiles // device.sms), -(-K // k)
    last = tiles - (rounds - 1) * device.sms

    efficiency = numbers.efficiencies[RUNG.name][word]
    rate = efficiency * gpus.flop_rate(asked.a.dtype, asked.precision, device) / device.sms
    products = 2 * m * n * k / rate
    bytes_ = 2 * (m + n) * k
    alone, together = bytes_ / numbers.sm_rate, bytes_ / numbers.l2_rate
    waits = numbers.latency / (CONFIG.num_stages - 1)

    def step(programs: int) -> float:
        return factor * math.hypot(products, alone, programs * together, waits)

    steps = depth * ((rounds - 1) * step(device.sms) + step(last))
    slower = numbers.throttle * steps / (steps + BRIEF)
    steps *= 1 + slower
    rate = numbers.memory_rate / device.sms
    end, store = late * numbers.ends_of[RUNG.name], 2 * m * n / rate
    shown = numbers.shown[RUNG.name]
    ends = (end + store) * (1 + (rounds - 1) * shown)
    memory = asked.bytes / numbers.memory_rate
    each, pairs = asked.bytes / tiles, device.sms / 2
    earlier = asked.bytes - each * (last if last <= pairs else last - pairs)
    read = earlier / numbers.memory_rate + each / numbers.pair_rate
    power = hungry * asked.flops * (numbers.power + numbers.traffic * (1 / m + 1 / n))
    busy = max(steps + ends, power)
    loads = (asked.bytes - 2 * M * N) / numbers.memory_rate
    overlap = numbers.overlap * min(busy, loads)
    launch = numbers.launches[RUNG.name]
    cold = numbers.colds[RUNG.name] * asked.bytes / (asked.bytes + 1e6)
    shorter = f"{1e6 * loads:.1f} µs for A and B" if loads < busy else "steps and ends"
    return {
        "steps": (
            f"{tiles} tiles of {m} x {n} on {device.sms} SMs are {rounds} rounds of {depth} steps. "
            f"A step takes {1e6 * step(device.sms):.3g} µs, and {1e6 * step(last):.3g} in the last "
            f"round, of {last} tiles: the root of the squares of {1e6 * products:.3g} for "
            f"products, {1e6 * alone:.3g} for what an SM draws from L2, "
            f"{1e6 * last * together:.3g} for what {last} do, and {1e6 * waits:.3g} for the "
            f"latency of a load, times {factor:.3g} for this tile; and {100 * slower:.0f} % more, "
            "since the clock falls meanwhile",
            steps,
        ),
        "ends": (
            f"{1e6 * end:.3g} µs, and {1e6 * store:.3g} µs to store {m} x {n} elements; of all "
            f"tiles but one {100 * shown:.0f} % are not hidden behind the next",
            ends,
        ),
        "power": (
            f"{asked.flops / 1e9:.0f} GFLOP at {1e15 * numbers.power:.3g} fs, and "
            f"{1e15 * numbers.traffic:.3g} fs times 1/{m} + 1/{n}, times {hungry:.3g} for this "
            "tile; it counts if it is more than steps and ends",
            power,
        ),
        "memory": (
            f"{asked.bytes / 1e6:.0f} MB at {numbers.memory_rate / 1e12:.3g} TB/s, meanwhile: "
            f"{1e6 * memory:.1f} µs, or until the last pair of SMs has read its tiles",
            max(memory, read),
        ),
        "overlap": (f"{numbers.overlap:.3g} of {shorter}, the shorter of the two", overlap),
        "launch": ("the rung's own", launch),
        "cold": ("the rung's own, and nearly all of it for so many bytes", cold),
        "total": (
            "the longer of the two, overlap, launch and cold",
            max(busy, memory, read) + overlap + launch + cold,
        ),
    }


def example_text() -> str:
    asked, found = problem(), example()
    rows = [f"| {name} | {how} | {1e6 * seconds:.1f} |" for name, (how, seconds) in found.items()]
    floor = asked.flops / gpus.flop_rate(asked.a.dtype, asked.precision, asked.device)
    took = [
        1e6 * sample.seconds
        for sample in searched()
        if (sample.problem, sample.kernel, sample.config) == (asked, RUNG, CONFIG)
    ]
    return "\n".join(
        [
            f"{asked} on an {GPU['gpu']}, by `{RUNG.name}` in tiles of {CONFIG}:",
            "",
            "| part | how | µs |",
            "|---|---|--:|",
            *rows,
            "",
            f"`python -m tritemm explain {CASE.M} {CASE.N} {CASE.K} --kernel {RUNG.name}` says the "
            f"same. The roofline is {1e6 * floor:.1f} µs; searches measured {min(took):.1f} to "
            f"{max(took):.1f} µs.",
        ]
    )


def physics() -> str:
    measured = GPU["physics"]
    rows = [
        f"| `{name}` | {measured[name] / unit:.4g} {word} | {meaning} |"
        for name, (meaning, unit, word) in PHYSICS.items()
    ]
    clusters = ", ".join(str(count) for count in measured["clusters"])
    rows.append(f"| `clusters` | {clusters} | of 1, 2, ... 8 programs that have room at once |")
    return "\n".join([f"| {GPU['gpu']} | | |", "|---|--:|---|", *rows])


def fitted() -> str:
    data = GPU["fitted"]
    plain = [f"`{name}` {_shown(name, value)}" for name, value in data["rates"].items()]
    tiles = sum(len(table) for table in data["tiles"].values())
    launches, colds, ends = (_spread(data[name]) for name in ("launches", "colds", "ends_of"))
    lines = [
        f"- {len(plain)} plain numbers "
        "([what each is](../tritemm/dispatch/cost_model/constants.py)): " + ", ".join(plain) + ".",
        f"- Of each rung that was timed, its own launch ({launches}), what cold operands add "
        f"({colds}), a tile's ends ({ends}), how much of them shows, and for each type its share "
        "of the dense rate at the settled clock, which a card below its power limit exceeds.",
        f"- Of {tiles} tiles of {len(data['tiles'])} rungs, a factor each of a step, of the ends "
        "and of what power allows, near 1.",
    ]  # fmt: skip
    for other in gpus.files():
        if rates := other.get("rates"):
            plain = [f"`{name}` {_shown(name, value)}" for name, value in rates.items()]
            lines.append(f"- Of the {other['gpu']} alone: {', '.join(plain)}.")
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    if name in PLAIN:
        return f"{value:.3g}"
    if name == "crowd":
        return f"{value / 1e6:.3g} MB"
    if name == "part_store":
        return f"{value:.3g} bytes"
    if name.endswith("rate"):
        return f"{value / 1e9:.4g} GB/s" if value < 1e13 else f"{value / 1e12:.3g} TB/s"
    return f"{1e15 * value:.3g} fs" if value < 1e-12 else f"{1e6 * value:.2g} µs"


def _spread(table: Mapping[str, float]) -> str:
    return f"{1e6 * min(table.values()):.2g} to {1e6 * max(table.values()):.2g} µs"


@functools.cache
def searched() -> list[Sample]:
    """The committed searches."""
    return read([SEARCHES], gpus.device_of(GPU))


@functools.cache
def measured_quality() -> Quality:
    """Of the shipped numbers on the committed searches."""
    return quality(searched(), constants.of(gpus.device_of(GPU)))
