"""What a step of a tile takes, in problems that differ in their sizes alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from ...arch import gpus
from ...arch.clusters import unit
from ...arch.gemv import WORD_BYTES
from ...arch.limits import CUT
from ...arch.lines import by_tma
from ...arch.roles import LOADED_AHEAD
from ...arch.sm80 import REGISTERS as SM_REGISTERS
from ...arch.sm80 import THREADS
from ...arch.tiles import POINTER_COLUMNS
from ...problem import GATED, Device, Matrix, Problem
from ...problem.config import Config
from ...runtime.bounded import Bounded
from ...spec import CostHint, Kernel
from . import constants as known
from .constants import REGISTERS, Constants

#: Registers of a thread for addresses and indices beside its accumulators, and where it has no
#: ring.
_OTHER_REGISTERS = 64
_FEW_REGISTERS = 24
#: Seconds of an SM for what follows the sum of an element of the product, measured on an H200: a
#: bias, an activation, a byte of a residual.
_BIAS = 35e-12
_ACTIVATION = {
    "": 0.0, "relu": 10e-12, "gelu": 105e-12, "gelu_tanh": 90e-12, "silu": 75e-12,
    "swiglu": 45e-12, "geglu": 60e-12,
}  # fmt: skip
_RESIDUAL_BYTE = 55e-12
#: Where consumers take turns, a step of gated pairs takes so much of the time that stands for one,
#: which was measured where nothing but the product draws power.
_PAIRS_IN_TURNS = 0.88
#: How many times longer that takes where a residual isn't loaded ahead.
_CRAMPED = 4 / 3
#: Bytes that an SM's loads bring per clock.
_BYTES = 56
#: Cycles in which WGMMA reads the 64 rows of A that it multiplies, of 16 elements each.
_REREAD = 16
#: Bytes of a line of L2: a tile's row that straddles two lines is two requests.
_LINE = 128
#: Bytes of a sector of L2, which is written as a whole.
SECTOR = 32

#: Of a config, for a kind of problem: BLOCK_M, BLOCK_N, BLOCK_K, the parts of a split K, the
#: elements of K at whose multiples it is split, programs of a cluster that share loads, programs
#: that have room at once, bytes that a program stores of a tile (`Kind.stored`); of a step, where a
#: cluster's programs stand one below the other and where side by side, the squares of what bounds
#: it in a program alone, and of what each program at work adds; seconds of the ends, the least of
#: them with their stores, programs on an SM, seconds of the epilogue, and of the device for a
#: 16-bit FLOP where power limits.
Shape = tuple[
    int, int, int, int, int, int, int, float, tuple[float, float], tuple[float, float],
    float, float, int, float, float
]  # fmt: skip
#: Of a config whose tiles are alike: BLOCK_M, BLOCK_N, BLOCK_K, the parts of a split K, seconds of
#: a step where all SMs work, and of the ends, programs on an SM, steps whose loads fly at once.
AlikeShape = tuple[int, int, int, int, float, float, int, int]
#: Shapes that are kept of a rung.
_MOST_SHAPES = 1 << 10


class Kind:
    """Problems, as a kernel sees them, that differ in nothing but their sizes.

    `facts` are what `facts_of` says.
    """

    def __init__(self, device: Device, facts: tuple, constants: Constants | None = None):
        (dtype, precision, self.out, self.layouts, wide, self._pitches, self.c_major,
         ending) = facts  # fmt: skip
        self.constants = constants or known.of(device)
        self.device, self.sms, self.itemsize = device, device.sms, dtype.itemsize
        # Of which no load was measured: what an SM reads from L2 at best.
        self._byte = 1 / (_BYTES * gpus.physics(device).clock)
        self.flop_rate = gpus.flop_rate(dtype, precision, device)
        self.flop_rate_16 = gpus.flop_rate(torch.float16, "ieee", device)
        self.types = precision if dtype == torch.float32 else str(dtype).rpartition(".")[2]
        if self.itemsize == 2:
            self.types = "16-bit"
        self.narrow = tuple(not each for each in wide)
        self.by_threads = not by_tma(self.c_major)
        self.finish, self.adds = _finish(*ending), ending[-1] > 0
        self.gated = ending[1] in GATED
        # WGMMA reads only 16-bit operands along M or N; others are turned in shared memory.
        turns = dtype == torch.int8 or self.types[:2] in ("tf", "bf")
        self._turned = turns * (self.layouts[0] != "N"), turns * (self.layouts[1] != "T")
        # Columns of B that are requested together: those of a line, where it is stored by rows.
        self.along = _LINE // self.itemsize if self.layouts[1] == "N" else 1
        # (rung, id of a config) -> the config and its shape. Hashing a config costs more than
        # working its shape out; the config is kept so that no other can have its id.
        self._shapes: dict[Kernel, dict[int, tuple[Config, Shape | AlikeShape]]] = {}

    def stored(self, columns: int = POINTER_COLUMNS) -> float:
        """Bytes that take as long to store as an element of C, of a tile with so many columns."""
        c, run = self.constants, self.run(columns)
        if self.by_threads:  # each run touches one sector more than it fills
            return self.out * c.narrow_store * (1 + SECTOR / run)
        return self.out * max(1.0, c.part_store / run)

    def run(self, columns: int) -> int:
        """Bytes beside each other of C that are stored at a time, of a tile with so many columns:
        of pieces of 64 rows."""
        return self.out * (unit(columns) if self.c_major in ("N", "n") else POINTER_COLUMNS)

    def shapes(self, kernel: Kernel, configs: Sequence[Config]) -> list[Shape | AlikeShape]:
        """Of each config; kept where the rung gives the same objects for many problems."""
        table = self._shapes.setdefault(kernel, Bounded(_MOST_SHAPES))
        shapes = []
        for config in configs:
            found = table.get(id(config))
            if found is None:
                found = table[id(config)] = config, self.shape(kernel, config)
            shapes.append(found[1])
        return shapes

    def shape(self, kernel: Kernel, config: Config) -> Shape | AlikeShape:
        """Of a config whose SWAP and PACK were done."""
        c, cost = self.constants, kernel.cost
        if cost.independent_ctas:
            return self._alike(kernel, config)
        m, n, k, split = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, config.SPLIT_K
        cluster = config.CLUSTER
        word = self.word(cost)
        factor, late, hungry = c.factors(kernel, known.key(cost, word, config))
        ends = c.of_rung(kernel).ends_of * late
        if config.PARTS > config.SPLIT_K:
            ends += (config.PARTS - 1) * c.drain
        if self.gated and cost.pingpong:
            factor *= _PAIRS_IN_TURNS
        together = 1 if cost.persistent else self.together(cost, config)
        turned = 1 + c.turned * self.turned(cost)
        alone = (self.products(config) * turned / c.efficiency(kernel, word)) ** 2
        alone += (c.latency / (max(config.num_stages - 1, 1) * together)) ** 2
        a, b = (
            bytes_ * (1 + c.straddle * lines + c.off_sector * sectors)
            for bytes_, (lines, sectors) in zip(
                self.drawn(cost, config), self.straddling(config), strict=True
            )
        )
        below, beside = (
            (factor**2 * (alone + (drawn / c.sm_rate) ** 2), (factor * drawn / c.l2_rate) ** 2)
            for drawn in (a + b / cluster, a / cluster + b)
        )
        own = m * n / split if cost.exchanges else m * n
        stored = self.stored(n) * own
        least_ends = ends + stored / c.sm_memory_rate
        programs = split if cost.exchanges else cluster
        room = max(1, gpus.clusters_at_once(programs, self.device)) * programs
        after = self.finish * own
        if self.adds and cost.pingpong and m * n > LOADED_AHEAD * 32 * config.num_warps:
            after *= _CRAMPED
        cut = CUT if config.PARTS > 1 else k
        return (m, n, k, split, cut, cluster, room, stored, below, beside, ends, least_ends,
                together, after, hungry * (c.power + c.traffic * (1 / m + 1 / n)))  # fmt: skip

    def turned(self, cost: CostHint) -> int:
        """Operands that a rung turns in shared memory."""
        a, b = self._turned
        return b if cost.a_registers else a + b

    def products(self, config: Config) -> float:
        """Seconds of a k-step's products on an SM at the dense rate."""
        m, n, k = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K
        # Of 64 rows and few columns, WGMMA takes less time than to read its operands again.
        thin = max(1.0, (_REREAD + n / 4) / (n / 2))
        return 2 * m * n * k * thin / (self.flop_rate / self.sms)

    def drawn(self, cost: CostHint, config: Config) -> tuple[float, float]:
        """Bytes of A and of B that a k-step draws from L2, were they of one line each."""
        columns = -(-config.BLOCK_N // self.along) * self.along
        narrow_a, narrow_b = (cost.narrow if narrow else 1 for narrow in self.narrow)
        deep = config.BLOCK_K * self.itemsize
        return config.BLOCK_M * narrow_a * deep, columns * narrow_b * deep

    def straddling(self, config: Config) -> tuple[tuple[float, float], tuple[float, float]]:
        """Of the rows of A's tiles, and of B's: see `_straddling`."""
        # A tile that is stored across K begins wherever the one before it ends.
        m = config.BLOCK_M * self.itemsize if self.layouts[0] == "T" else 0
        n = config.BLOCK_N * self.itemsize if self.layouts[1] == "N" else 0
        a, b = self._pitches
        return _straddling(a, m), _straddling(b, n)

    def _alike(self, kernel: Kernel, config: Config) -> AlikeShape:
        load, ends = self.load(kernel, config)
        together = self.together(kernel.cost, config)
        m, n, k = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K
        step = load * self.per_step(config)
        ends += self.constants.lanes * self.sums(config)
        return m, n, k, config.SPLIT_K, step, ends, together, config.num_stages

    def load(self, kernel: Kernel, config: Config) -> tuple[float, float]:
        """What stands in `Constants.loads` of a tile that is alike, or would."""
        c, cost = self.constants, kernel.cost
        key = known.key(cost, self.word(cost), config)
        unknown = self.itemsize * self._byte, c.ends
        return c.loads.get(kernel.name, {}).get(key, unknown)

    def sums(self, config: Config) -> int:
        """Sums that the threads have of a tile that is alike: one for each line and word, or, where
        lanes run along N, for each row of B and element."""
        per_sum = 1 if self.layouts[1] == "N" else WORD_BYTES // self.itemsize
        return config.BLOCK_M * config.BLOCK_N * config.BLOCK_K // per_sum

    def word(self, cost: CostHint) -> str:
        """Under which the k-steps of these types and loads were measured."""
        narrow = "ab"[not self.narrow[0] : 1 + self.narrow[1]] if cost.narrow != 1 else ""
        count = self.turned(cost)
        turned = f"/turned-{count}" if count else ""
        if cost.a_registers and self._turned[0]:
            turned += REGISTERS
        layouts = f"/{self.layouts}" if cost.independent_ctas else ""
        return self.types + (narrow and f"/narrow-{narrow}") + turned + layouts

    def per_step(self, config: Config) -> float:
        """How many times what stands in `Constants.loads` is a step of `config`.

        It is an element's share of a load of four, of 16 bits each, and four times what a product
        takes. If A is stored across K, each of its elements is a load.
        """
        m, n = config.BLOCK_M, config.BLOCK_N
        across = self.layouts[0] == "T"
        return config.BLOCK_K * (n + (4 if across else 1) * m + m * n / 4)

    def together(self, cost: CostHint, config: Config) -> int:
        """Programs that an SM runs at once, by shared memory, registers and threads."""
        m, n, threads = config.BLOCK_M, config.BLOCK_N, 32 * config.num_warps
        if (
            cost.independent_ctas
        ):  # a line's words are read by lanes beside each other, each with its sums
            in_flight = n * config.BLOCK_K * config.num_stages * self.itemsize // 4
            registers = in_flight + self.sums(config) + _FEW_REGISTERS * threads
            return max(1, min(SM_REGISTERS // registers, THREADS // threads))
        registers = m * n + _OTHER_REGISTERS * threads
        stages = (m + n) * config.BLOCK_K * self.itemsize * config.num_stages
        return max(1, min(SM_REGISTERS // registers, 16, self.device.shared // stages))


_KINDS: dict[tuple, Kind] = {}


def kind_of(view: Problem) -> Kind:
    """The kind of a problem as a kernel sees it."""
    device = view.device
    key = device.name, device.sms, device.clusters, *facts_of(view)
    found = _KINDS.get(key)
    if found is None:
        found = _KINDS[key] = Kind(device, key[3:])
    return found


def facts_of(view: Problem) -> tuple:
    """The operands' type and precision, bytes of C for an element of the product, the layouts,
    whether loads of A and B are 16 bytes wide, what they straddle, how C is stored, in the words of
    `arch.lines.c_major`, and of the epilogue whether it has a bias, its activation, bytes of an
    element of the residual."""
    a, b, c, after = view.a, view.b, view.c, view.epilogue
    stored = c.dtype.itemsize // (2 if after.gated else 1)
    return (
        a.dtype, view.precision, stored, a.layout + b.layout, (_wide(a), _wide(b)),
        (_pitch(a), _pitch(b)), _c_major(c),
        (after.bias is not None, after.activation,
         after.residual.dtype.itemsize if after.residual else 0),
    )  # fmt: skip


@functools.cache
def _straddling(pitch: int, tile: int) -> tuple[float, float]:
    """Of rows that are a multiple of `pitch` bytes apart, in tiles that begin at multiples of
    `tile` bytes of a row, the shares that begin inside a line of L2, so that 128 bytes touch two;
    and inside a sector, so that they touch five. Of tiles of whole rows, `tile` is 0."""
    pitch = math.gcd(pitch, tile)
    return 1 - pitch / _LINE, 1 - min(pitch / SECTOR, 1)


def _finish(bias: bool, activation: str, residual: int) -> float:
    """Seconds of an SM for what follows an element's sum."""
    seconds = _BIAS * bias + _ACTIVATION[activation]
    return seconds + _RESIDUAL_BYTE * residual


def _pitch(matrix: Matrix) -> int:
    """The largest power of two, up to a line of L2, that divides the bytes from row to row (or from
    column to column) of `matrix`."""
    pitch = matrix.pitch(matrix.layout) if matrix.layout != "-" else 1
    return math.gcd(pitch * matrix.dtype.itemsize, _LINE)


def _wide(matrix: Matrix) -> bool:
    """Whether pointer loads of `matrix` are 16 bytes wide; see `Problem.vectorised`."""
    return matrix.aligned and matrix.pitch_is_multiple_of(16)


def _c_major(matrix: Matrix) -> str:
    """How C is stored: along rows (N) or columns (T); by threads (n, t) where its lines don't begin
    on 16-byte boundaries."""
    layout = matrix.layout
    pitch = matrix.pitch(layout) * matrix.dtype.itemsize if layout != "-" else 1
    if matrix.aligned and pitch % 16 == 0:
        return layout
    return "t" if layout == "T" else "n"
