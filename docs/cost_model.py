"""The generated parts of docs/cost_model.md: the model's numbers, and one prediction by hand.

The example is worked out here from the numbers alone, as a second opinion on the model;
`tests/dispatch/test_cost_model.py` holds the two against each other.
"""

import functools
import math
from collections.abc import Iterable
from pathlib import Path

from perf.case import Case
from perf.operands import operands
from tools.fit.fit import Quality, quality
from tools.fit.samples import Sample, read
from tritemm.arch import gpus
from tritemm.dispatch.cost_model import constants
from tritemm.dispatch.cost_model.columns import kind_of, tile_of
from tritemm.dispatch.cost_model.model import BRIEF, BURST
from tritemm.problem import Problem
from tritemm.problem.config import Config
from tritemm.rungs import find

from .cards import TUNED

ROOT = Path(__file__).resolve().parent.parent
GPU = gpus.file_of(TUNED.gpu)
STEM = gpus.path_of(GPU["gpu"]).stem
SEARCHES = sorted((ROOT / "perf" / "results" / "search").glob(f"{STEM}*.jsonl.gz"))
#: The output projection of Llama 3 8B, on 8192 tokens.
CASE = Case(8192, 4096, 4096, "NT")
RUNG = find("warp_specialized")
CONFIG = Config(128, 256, 64, num_warps=8, num_stages=3, ORDER="grouped")
#: Of what bounds every kernel: what it is, and in which unit they are shown.
PHYSICS = {
    "clock": ("of the SMs, once a bf16 product of 8192³ has settled", 1e6, "MHz"),
    "copy_rate": ("of a copy of 2 GiB; bytes that are read and written", 1e9, "GB/s"),
    "launch": ("of a kernel that does next to nothing, one of many in a CUDA graph", 1e-6, "µs"),
    "l2": ("of operands that L2, of 50 MB, keeps in addition to all else; assumed", 2**20, "MiB"),
}
#: How the units of `constants.NUMBERS` are shown: the least value of each, its factor and word.
SHOWN = {
    "B/s": ((1e13, 1e12, "TB/s"), (0, 1e9, "GB/s")),
    "s": ((1e-12, 1e-6, "µs"), (0, 1e-15, "fs")),
    "B": ((1e6, 1e6, "MB"), (0, 1, "bytes")),
    "": ((0, 1, ""),),
}


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
    rung = numbers.rungs[RUNG.name]
    m, n, k = CONFIG.BLOCK_M, CONFIG.BLOCK_N, CONFIG.BLOCK_K
    own_step, own_ends = rung.factors(kind_of(asked).word(RUNG), tile_of(CONFIG.numbers))
    tiles = -(-M // m) * -(-N // n)
    waves, depth = -(-tiles // device.sms), -(-K // k)
    last = tiles - (waves - 1) * device.sms

    efficiency = rung.efficiency[kind_of(asked).word(RUNG)]
    rate = efficiency * gpus.flop_rate(asked.a.dtype, asked.precision, device) / device.sms
    products = 2 * m * n * k / rate
    bytes_ = 2 * (m + n) * k
    alone, together = bytes_ / numbers.sm_rate, bytes_ / numbers.l2_rate
    waits = numbers.latency / (CONFIG.num_stages - 1)

    def step(programs: int) -> float:
        return own_step * math.hypot(products, alone, programs * together, waits, numbers.beat)

    steps = depth * ((waves - 1) * step(device.sms) + step(last))
    slower = numbers.throttle * steps / (steps + BRIEF)
    steps *= 1 + slower
    rate = numbers.memory_rate / device.sms
    store = 2 * m * n / rate
    late = own_ends * rung.ends
    ends = (late + store) * (1 + (waves - 1) * rung.shown)
    memory = asked.bytes / numbers.memory_rate
    each, pairs = asked.bytes / tiles, device.sms / 2
    earlier = asked.bytes - each * (last if last <= pairs else last - pairs)
    read = earlier / numbers.memory_rate + each / numbers.pair_rate
    power = asked.flops * (numbers.power + numbers.traffic * (1 / m + 1 / n))
    busy = max(steps + ends, power)
    loads = (asked.bytes - 2 * M * N) / numbers.memory_rate
    overlap = numbers.overlap * min(busy, loads)
    cold = rung.cold * asked.bytes / (asked.bytes + BURST)
    shorter = f"{1e6 * loads:.1f} µs for A and B" if loads < busy else "steps and ends"
    return {
        "steps": (
            f"{tiles} tiles of {m} x {n} on {device.sms} SMs are {waves} waves of {depth} steps. "
            f"A step takes {1e6 * step(device.sms):.3g} µs, and {1e6 * step(last):.3g} in the last "
            f"wave, of {last} tiles: {own_step:.3g}, the tile's own factor, times the root of the "
            f"squares of {1e6 * products:.3g} for products, {1e6 * alone:.3g} for what an SM reads "
            f"from L2, {1e6 * last * together:.3g} for what {last} SMs read, {1e6 * waits:.3g} for "
            f"the latency of a load, and {1e6 * numbers.beat:.3g} that a step takes however small "
            f"it is; and {100 * slower:.0f} % more, because the clock falls meanwhile",
            steps,
        ),
        "ends": (
            f"{1e6 * late:.3g} µs, {own_ends:.3g} times the rung's, and {1e6 * store:.3g} µs to "
            f"store {m} x {n} elements; {100 * rung.shown:.0f} % of this shows for all tiles but "
            "one, and the next tile hides the rest",
            ends,
        ),
        "power": (
            f"{asked.flops / 1e9:.0f} GFLOP at {1e15 * numbers.power:.3g} fs, and "
            f"{1e15 * numbers.traffic:.3g} fs times 1/{m} + 1/{n}; "
            "it counts if it is longer than steps and ends",
            power,
        ),
        "memory": (
            f"{asked.bytes / 1e6:.0f} MB at {numbers.memory_rate / 1e12:.3g} TB/s, meanwhile: "
            f"{1e6 * memory:.1f} µs, or until the last pair of SMs has read its tiles",
            max(memory, read),
        ),
        "overlap": (f"{numbers.overlap:.3g} of {shorter}, the shorter of the two", overlap),
        "launch": ("the rung's own", rung.launch),
        "cold": ("the rung's own, and nearly all of it for so many bytes", cold),
        "total": (
            "the longer of the two, overlap, launch and cold",
            max(busy, memory, read) + overlap + rung.launch + cold,
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
            f"`python -m tritemm explain {CASE.M} {CASE.N} {CASE.K} --kernel {RUNG.name}` says "
            "the same total, and the same parts except power and cold. The roofline is "
            f"{1e6 * floor:.1f} µs; searches measured {min(took):.1f} to {max(took):.1f} µs.",
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
    numbers = constants.of(gpus.device_of(GPU))
    rows = [
        f"| `{name}` | {_shown(getattr(numbers, name), about['unit'])} | {about['meaning']} |"
        for name, about in constants.NUMBERS.items()
        if getattr(numbers, name)
    ]
    spread = {
        name: _range(1e6 * getattr(rung, name) for rung in numbers.rungs.values()) + " µs"
        for name in ("launch", "cold", "ends")
    }
    steps, ends = map(_range, zip(*_tiles(numbers), strict=True))
    lines = [
        "| fitted | | |", "|---|--:|---|", *rows, "",
        f"Each of {len(numbers.rungs)} rungs also has its launch ({spread['launch']}), what cold "
        f"operands add ({spread['cold']}), a tile's ends ({spread['ends']}), how much of them "
        "shows, and for each type its share of the dense rate at the settled clock, which a card "
        f"below its power limit exceeds. {len(_tiles(numbers))} tiles have two factors of "
        f"their own: for a step ({steps}) and for the ends ({ends}). These are {_count(numbers)} "
        "numbers in all.",
    ]  # fmt: skip
    for other in gpus.files():
        if rates := other.get("rates"):
            units = {name: constants.NUMBERS[name]["unit"] for name in rates}
            plain = [f"`{name}` {_shown(value, units[name])}" for name, value in rates.items()]
            lines += ["", f"Only for the {other['gpu']}: {', '.join(plain)}."]
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    factor, word = next(more for least, *more in SHOWN[unit] if value >= least)
    return f"{float(f'{value / factor:.3g}'):.12g} {word}".rstrip()


def _count(numbers: constants.Constants) -> int:
    """The fitted numbers, without those that are 0."""
    factors = 2 * len(_tiles(numbers))
    rungs = (4 + len(rung.efficiency) + 2 * len(rung.load) for rung in numbers.rungs.values())
    return sum(getattr(numbers, name) != 0 for name in constants.NUMBERS) + sum(rungs) + factors


def _tiles(numbers: constants.Constants) -> list[tuple[float, float, float]]:
    """The factors of each tile that has some."""
    kinds = (known for rung in numbers.rungs.values() for known in rung.tiles.values())
    return [factors for known in kinds for factors in known.values()]


def _range(values: Iterable[float]) -> str:
    values = list(values)
    return f"{min(values):.2g} to {max(values):.2g}"


@functools.cache
def searched() -> list[Sample]:
    """The committed searches."""
    return read(SEARCHES, gpus.device_of(GPU))


@functools.cache
def measured_quality() -> Quality:
    """Quality of the shipped numbers on the committed searches, which takes seconds."""
    return quality(searched(), constants.of(gpus.device_of(GPU)))
