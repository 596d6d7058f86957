"""The numbers of the cost model: analytic for any GPU, corrected by what a GPU was measured at."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

from ...arch import gpus
from ...problem import Device
from ...problem.config import Config
from ...spec import CostHint, Kernel

#: (word, BLOCK_M, BLOCK_N, BLOCK_K, warps, stages, programs of a cluster), see `key`; all 1 behind
#: the word of tiles that are alike.
Key = tuple[str, int, int, int, int, int, int]
#: What ends a `Kind.word` of which WGMMA takes A from registers.
REGISTERS = "/registers"


class Factors(NamedTuple):
    """What corrects what is expected of a tile."""

    step: float = 1.0
    ends: float = 1.0
    power: float = 1.0


@dataclasses.dataclass(frozen=True)
class Constants:
    """Seconds, and bytes per second.

    `launch` is measured, in a stream of launches (`gpus.Physics`). `memory_rate` is the device's
    where work takes its share beside the memory (`overlap`), and so is more than a copy's;
    `sm_memory_rate` what one SM can move from or to device memory, and `pair_rate` what a pair
    of SMs, a TPC, reads of it: the pairs get the same share of the memory's rate, so those of which
    both SMs are at work finish later than those of which one is. `l2_rate` is what all SMs
    together can draw from L2, `sm_rate` what one of them can; `straddle` what a second line of L2
    costs that 128 bytes of a tile's row touch, relative to the first, and `off_sector` as much more
    where they begin inside a sector. `latency`: from the request of a k-step's tiles to their
    arrival; `wait` the same where tiles are alike. `ends`: what a tile costs beside its k-steps and
    the bytes that it stores. `pack`: one copy kernel, beside its bytes. `reduction`: adding up the
    parts of a split K, beside their bytes; `gather`: as much more for each part; `sum_rate`: at
    which an SM writes and reads them. `exchange`: as `reduction`, between the programs of a
    cluster, of which one sends and receives `exchange_rate`. `overlap`: the share of the shorter
    one that work and what is read of memory add to the longer one. `throttle`: how much longer work
    takes once the clock has fallen, as it does in work that lasts (`model.BRIEF`). `boost`: how
    much faster an SM works on tiles that are alike if all others idle; `lanes`: to add a thread's
    sum of such a tile to the others'. `turned`: arithmetic that each operand adds that WGMMA can't
    read as it is stored, relative to the product's. `narrow_store`: how many times longer it takes
    to store C where its lines are not aligned, beside the sectors that pieces of C touch twice;
    `part_store` the bytes that a piece's row counts for at least where TMA stores it.

    `drain`: where a program has K in fixed parts, to wait for a part's last products, and to add
    them; a guess.

    `crowd`: so many bytes of C that are on their way at once, of all SMs, double the time that the
    memory takes for what L2 doesn't keep of C; 0 where that was not seen. `padding`: the share that
    counts as read of what tiles reach beyond the ends of A and B.

    `cold`: what operands add to a launch that lie in device memory, and are a burst of requests
    each time: half of it for a megabyte, nearly all for ten.

    `power` and `traffic`: what the power limit allows, in seconds of the device per 16-bit FLOP:
    `power`, and `traffic` times 1 / BLOCK_M + 1 / BLOCK_N, for the bytes that a FLOP moves on chip.
    0 where it was not measured.

    By rung, `launches`, `colds` and `ends_of` correct `launch`, `cold` and `ends`, and `shown` the
    share of a tile's ends that is not `CostHint.epilogue_overlap`. Of a rung by `Kind.word`,
    `efficiencies` correct `CostHint.efficiency`. Of a rung by `key`, `tiles` are factors of a
    k-step, of the ends and of what power allows, and `loads`, of tiles that are alike, seconds of a
    load's share of an element and of a tile's ends.
    """

    memory_rate: float
    sm_memory_rate: float
    pair_rate: float
    sm_rate: float
    l2_rate: float
    straddle: float = 0.7
    off_sector: float = 0.5
    latency: float = 0.35e-6
    wait: float = 0.33e-6
    ends: float = 0.8e-6
    launch: float = 2.0e-6
    pack: float = 2.0e-6
    reduction: float = 1.5e-6
    gather: float = 0.05e-6
    sum_rate: float = 80e9
    exchange: float = 1.0e-6
    exchange_rate: float = 25e9
    overlap: float = 0.1
    throttle: float = 0.0
    boost: float = 0.35
    lanes: float = 0.3e-9
    turned: float = 3.7
    narrow_store: float = 2.0
    part_store: float = 50.0
    power: float = 0.0
    traffic: float = 0.0
    cold: float = 0.0
    crowd: float = 0.0
    padding: float = 0.0
    drain: float = 0.3e-6
    launches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    colds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    ends_of: Mapping[str, float] = dataclasses.field(default_factory=dict)
    shown: Mapping[str, float] = dataclasses.field(default_factory=dict)
    efficiencies: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    tiles: Mapping[str, Mapping[Key, Factors]] = dataclasses.field(default_factory=dict)
    loads: Mapping[str, Mapping[Key, tuple[float, float]]] = dataclasses.field(default_factory=dict)

    #: The names of the plain numbers that are fitted, in the order in which the file holds them.
    RATES = (
        "memory_rate", "sm_memory_rate", "pair_rate", "sm_rate", "l2_rate", "straddle",
        "off_sector", "latency", "wait", "ends", "pack", "reduction", "gather", "sum_rate",
        "exchange", "exchange_rate", "overlap", "throttle", "boost", "lanes", "turned",
        "narrow_store", "part_store", "power", "traffic", "cold", "crowd", "padding",
    )  # fmt: skip

    def of_rung(self, kernel: Kernel) -> OfRung:
        """What is known of one rung, or of all where it was not measured."""
        name, cost = kernel.name, kernel.cost
        return OfRung(
            self.launches.get(name, self.launch),
            self.colds.get(name, self.cold),
            self.ends_of.get(name, self.ends),
            self.shown.get(name, 1 - cost.epilogue_overlap),
        )

    def efficiency(self, kernel: Kernel, word: str) -> float:
        """A rung's share of the dense rate; of an A from registers that was not measured, as of
        one in shared memory."""
        known = self.efficiencies.get(kernel.name, {})
        return known.get(word, known.get(word.removesuffix(REGISTERS), kernel.cost.efficiency))

    def factors(self, kernel: Kernel, key: Key) -> Factors:
        """Of a rung's tile; of one that was not measured, 1."""
        return self.tiles.get(kernel.name, {}).get(key, Factors())


class OfRung(NamedTuple):
    """Seconds, and of what is shown a share."""

    launches: float
    colds: float
    ends_of: float
    shown: float


#: The mappings by rung, and by rung and `Kind.word` or `key`.
BY_RUNG, BY_WORD, BY_TILE = OfRung._fields, ("efficiencies",), ("tiles", "loads")


def key(cost: CostHint, word: str, config: Config) -> Key:
    """What a k-step's time depends on beside the rung: types and loads, tile, warps, stages,
    cluster.

    `word` is `Kind.types`, with "/narrow-" behind it and the operands whose loads are less than
    16 bytes wide, "/turned-" and how many operands are, `REGISTERS` if A comes from there, and the
    layouts where tiles are alike.
    """
    c = config
    if cost.independent_ctas:
        return word, 1, 1, 1, 1, 1, 1
    return word, c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, c.CLUSTER


@functools.lru_cache
def of(device: Device) -> Constants:
    """Of the device's own file, else of one with its architecture, else analytic ones.

    The own file may hold a few `rates` alone, beside which all else is another's.
    """
    guess, rates = analytic(device), {}
    for data in gpus.files():
        known, fitted = gpus.device_of(data), data.get("fitted")
        if (known.name, known.sms) == (device.name, device.sms):
            if fitted:
                return from_json(fitted, device)
            rates = data.get("rates", rates)
        if fitted and known.capability == device.capability:
            guess = _of_another(from_json(fitted, device), known, device)
    return dataclasses.replace(guess, **rates)


def _of_another(fitted: Constants, known: Device, device: Device) -> Constants:
    """What was fitted to another GPU of the architecture, with this one's clock, memory and SMs."""
    own, other = gpus.physics(device), gpus.physics(known)
    clock = own.clock / other.clock
    return dataclasses.replace(
        fitted,
        memory_rate=fitted.memory_rate * own.copy_rate / other.copy_rate,
        sm_rate=fitted.sm_rate * clock,
        l2_rate=fitted.l2_rate * clock * device.sms / known.sms,
    )


def analytic(device: Device) -> Constants:
    """What can be said of a device whose kernels were never timed."""
    physics = gpus.physics(device)
    # Per clock, as an H200's fitted ones are.
    sm_rate = 160 * physics.clock
    l2_rate = 76 * physics.clock * device.sms
    of_memory = min(sm_rate, 2.8 * physics.copy_rate / device.sms)
    of_pair = 2.4 * physics.copy_rate / device.sms
    return Constants(physics.copy_rate, of_memory, of_pair, sm_rate, l2_rate, launch=physics.launch)


def from_json(fitted: Mapping, device: Device) -> Constants:
    """The constants that `to_json` wrote, with the device's own launch."""
    by_rung = {name: fitted[name] for name in BY_RUNG}
    by_rung |= {name: fitted[name] for name in BY_WORD}
    by_tile = {
        name: {
            kernel: {_parse(text): make(values) for text, values in table.items()}
            for kernel, table in fitted[name].items()
        }
        for name, make in zip(BY_TILE, (Factors._make, tuple), strict=True)
    }
    return Constants(**fitted["rates"], launch=gpus.physics(device).launch, **by_rung, **by_tile)


def to_json(constants: Constants) -> dict:
    """What was fitted of `constants`."""
    return {
        "units": "seconds, bytes per second; efficiencies, shown: shares; tiles: types, tile, "
        "warps, stages, cluster: factors of a k-step, the ends and the power limit; loads: seconds "
        "of a load's share of an element, and of the ends, in any tile",
        "rates": {name: _short(getattr(constants, name)) for name in Constants.RATES},
        **{
            name: {k: _short(v) for k, v in sorted(getattr(constants, name).items())}
            for name in BY_RUNG
        },
        **{
            name: {
                kernel: {word: _short(v) for word, v in sorted(table.items())}
                for kernel, table in sorted(getattr(constants, name).items())
            }
            for name in BY_WORD
        },
        **{
            name: {
                kernel: {
                    _text(k): [_short(v) for v in values] for k, values in sorted(table.items())
                }
                for kernel, table in sorted(getattr(constants, name).items())
            }
            for name in BY_TILE
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
