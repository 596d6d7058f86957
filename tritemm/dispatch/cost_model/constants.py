"""The constants of the cost model: analytic for any GPU, fitted where its kernels were timed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...arch import gpus
from ...problem import Device
from ...spec import Kernel

#: The suffix of a `Kind.word` whose A is multiplied from registers.
REGISTERS = "/registers"


def _number(unit: str, meaning: str, default: Any = dataclasses.MISSING) -> Any:
    """A field with its unit and meaning, for the pages that show it."""
    return dataclasses.field(default=default, metadata={"unit": unit, "meaning": meaning})


class Rung(NamedTuple):
    """What was fitted to the times of one rung."""

    launch: float  # s, in a stream of launches
    cold: float  # s that operands in device memory add to a launch: a burst of requests
    ends: float  # s of a tile besides its k-steps and the bytes that it stores
    shown: float  # share of the ends that another tile's k-steps don't hide
    efficiency: Mapping[str, float]  # share of the dense rate, by `Kind.word`
    #: By `Kind.word`, where tiles are alike: s of a load's share of an element, and of the ends.
    load: Mapping[str, tuple[float, float]]
    #: By `Kind.word` and a tile's BLOCK_M, BLOCK_N, BLOCK_K, warps, stages and cluster, where one
    #: is more than 3.5 % from 1: factors of a k-step and of the ends.
    tiles: Mapping[str, Mapping[tuple[int, ...], tuple[float, float]]] = {}

    def factors(self, word: str, tile: tuple[int, ...]) -> tuple[float, float]:
        """A tile's factors: 1 if it was not timed, or takes as long as predicted."""
        return self.tiles.get(word, {}).get(tile, (1.0, 1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of one GPU; 0 for a limit that doesn't show."""

    memory_rate: float = _number(
        "B/s", "device memory, where a share of the work is added to its time (`overlap`)"
    )
    sm_memory_rate: float = _number("B/s", "what one SM stores to device memory")
    pair_rate: float = _number("B/s", "what two SMs, a TPC, read from device memory")
    crowded_rate: float = _number(
        "B/s",
        "what a program of a cluster reads from device memory, where more than half as many run as "
        "have room, and two share a TPC",
        45e9,
    )
    sm_rate: float = _number("B/s", "what one SM reads from L2")
    l2_rate: float = _number("B/s", "what all SMs together read from L2")
    straddle: float = _number(
        "", "a second L2 line that 128 bytes of a tile's row touch, relative to the first", 0.7
    )
    off_sector: float = _number("", "added if they begin inside a sector of L2", 0.5)
    latency: float = _number("s", "from the request of a k-step's tiles to their arrival", 0.35e-6)
    wait: float = _number("s", "the same where tiles are alike", 0.33e-6)
    beat: float = _number(
        "s",
        "a k-step whose tiles have arrived, however small: its barriers, and WGMMA in a row",
        50e-9,
    )
    ends: float = _number("s", "`Rung.ends` of a rung that was not timed", 0.8e-6)
    pack: float = _number("s", "a kernel that copies operands, besides its bytes", 2.0e-6)
    reduction: float = _number("s", "to add up the parts of a split K, besides their bytes", 1.5e-6)
    gather: float = _number("s", "as much more for each part", 0.05e-6)
    partial_rate: float = _number("B/s", "at which an SM writes and reads partial sums", 80e9)
    exchange: float = _number("s", "`reduction` between the programs of a cluster", 1.0e-6)
    exchange_rate: float = _number("B/s", "what one of them sends and receives", 25e9)
    overlap: float = _number(
        "", "share of the shorter one that work and reads of memory add to the longer one", 0.1
    )
    throttle: float = _number(
        "", "how much longer lasting work takes, once the clock has fallen", 0.0
    )
    boost: float = _number(
        "", "how much faster an SM works on tiles that are alike if all others idle", 0.35
    )
    lanes: float = _number(
        "s", "to add a thread's sum to the others', where tiles are alike", 0.3e-9
    )
    turned: float = _number(
        "", "work to transpose an operand in shared memory, relative to the product's", 3.7
    )
    narrow_store: float = _number(
        "", "how many times longer threads take to store C than TMA would, if it can't", 2.0
    )
    part_store: float = _number(
        "B", "what a row of a box that TMA stores counts for at least", 50.0
    )
    power: float = _number("s", "the device's for a 16-bit FLOP, at the power limit", 0.0)
    traffic: float = _number(
        "s", "as much more per 1 / BLOCK_M + 1 / BLOCK_N, for what a FLOP moves on chip", 0.0
    )
    cold: float = _number("s", "`Rung.cold` of a rung that was not timed", 0.0)
    crowd: float = _number(
        "B", "of C in flight at once that double the memory's time for what L2 won't keep", 0.0
    )
    padding: float = _number(
        "", "share of the tiles' parts beyond the ends of A and B that counts as read", 0.0
    )
    loaded: float = _number(
        "",
        "how much longer a ring's loads take, the longer memory reads alongside the work",
        0.0,
    )
    #: Not fitted: a launch (s), measured; to wait for the last products of a fixed part of K, and
    #: to add them (s), a guess.
    launch: float = 2.0e-6
    drain: float = 0.3e-6
    rungs: Mapping[str, Rung] = dataclasses.field(default_factory=dict)

    def rung(self, kernel: Kernel) -> Rung:
        """The constants of one rung, or of all if it was not timed."""
        unknown = Rung(self.launch, self.cold, self.ends, 1 - kernel.cost.epilogue_overlap, {}, {})
        return self.rungs.get(kernel.name, unknown)

    def efficiency(self, kernel: Kernel, word: str) -> float:
        """A rung's share of the dense rate; with an A from registers that was not timed, as with
        one in shared memory."""
        known = self.rung(kernel).efficiency
        return known.get(word, known.get(word.removesuffix(REGISTERS), kernel.cost.efficiency))


#: The fitted plain constants, by name: unit and meaning.
NUMBERS = {each.name: each.metadata for each in dataclasses.fields(Constants) if each.metadata}


@functools.lru_cache
def of(device: Device) -> Constants:
    """The constants in the device's own file, else in its architecture's, else analytic ones.

    The own file may hold only a few `rates`; then the rest is another GPU's.
    """
    guess = analytic(device)
    rates: dict[str, Any] = {}
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
    clock, memory = own.clock / other.clock, own.copy_rate / other.copy_rate
    return dataclasses.replace(
        fitted,
        memory_rate=fitted.memory_rate * memory,
        pair_rate=fitted.pair_rate * memory * known.sms / device.sms,
        crowded_rate=fitted.crowded_rate * memory * known.sms / device.sms,
        sm_rate=fitted.sm_rate * clock,
        l2_rate=fitted.l2_rate * clock * device.sms / known.sms,
    )


def analytic(device: Device) -> Constants:
    """What can be said about a device whose kernels were never timed."""
    physics = gpus.physics(device)
    sm_rate = 160 * physics.clock  # per clock, as an H200's is
    return Constants(
        memory_rate=physics.copy_rate,
        sm_memory_rate=min(sm_rate, 2.8 * physics.copy_rate / device.sms),
        pair_rate=2.4 * physics.copy_rate / device.sms,
        sm_rate=sm_rate,
        l2_rate=76 * physics.clock * device.sms,
        launch=physics.launch,
    )


def from_json(fitted: Mapping, device: Device) -> Constants:
    """The constants in a file under `fitted`, with the device's own launch."""
    rungs = {name: _rung(values) for name, values in fitted["rungs"].items()}
    return Constants(**fitted["rates"], launch=gpus.physics(device).launch, rungs=rungs)


def _rung(values: Mapping) -> Rung:
    """A rung of such a file, which names a tile "128x256x64x8x4x2"."""
    tiles = {
        word: {tuple(map(int, tile.split("x"))): tuple(each) for tile, each in known.items()}
        for word, known in values.get("tiles", {}).items()
    }
    return Rung(**{**values, "tiles": tiles})
