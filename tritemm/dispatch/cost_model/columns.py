"""Candidates as columns of numbers, of which `model` works out all at once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ...arch import gpus, sm80, sm90
from ...arch.gemv import WORD_BYTES
from ...arch.limits import CUT
from ...arch.lines import by_tma
from ...arch.roles import LOADED_AHEAD
from ...arch.tiles import POINTER_COLUMNS
from ...problem import GATED, Device, Matrix, Problem, kept
from ...problem.config import Config
from ...spec import Kernel
from .constants import REGISTERS, Constants

#: Bytes of a line of L2, and of a sector, which is read and written as a whole.
LINE, SECTOR = 128, 32
#: Seconds of an SM for what the epilogue does to an element, measured on an H200: a bias, an
#: activation, a byte of a residual.
_BIAS = 35e-12
_ACTIVATION = {
    "": 0.0, "relu": 10e-12, "gelu": 105e-12, "gelu_tanh": 90e-12, "silu": 75e-12,
    "swiglu": 45e-12, "geglu": 60e-12,
}  # fmt: skip
_RESIDUAL_BYTE = 55e-12
#: Bytes that an SM's loads bring per clock.
_BYTES = 56
#: Registers for the addresses and indices of a thread beside its accumulators, and where it has no
#: ring.
_OTHER_REGISTERS, _FEW_REGISTERS = 64, 24
#: Cycles in which the tensor cores read the 64 rows of A that they multiply, of 16 elements each.
_REREAD = 16
#: Where consumers take turns, a step of pairs takes so much of the time that stands for one,
#: which was measured where nothing but the product draws power; and the epilogue takes so many
#: times as long where a residual isn't loaded ahead.
_PAIRS, _CRAMPED = 0.88, 4 / 3

#: A number for each candidate: a NumPy array, or a tensor where constants are fitted.
Column = Any


class Group(NamedTuple):
    """A rung and its configs for a `view`: the problem as the rung sees it, packed and swapped."""

    kernel: Kernel
    configs: Sequence[Config]
    view: Problem
    copied: int = 0  # B read and written to pack operands
    pack: str = ""
    swap: bool = False

    def whole(self, config: Config) -> Config:
        """`config` with PACK and SWAP."""
        if self.pack or self.swap:
            return dataclasses.replace(config, PACK=self.pack, SWAP=self.swap)
        return config


class View(NamedTuple):
    """What follows from the problem and the rung."""

    M: Column
    N: Column
    K: Column
    batch: Column
    symmetric: Column  # whether C is a triangle of tiles
    bytes: Column  # B of A, B and C, each once
    stored: Column  # B of C
    copied: Column  # B
    flops: Column  # FLOP of 16-bit operands that draw as much power
    launch: Column  # `Rung`, for the types and loads of the view
    cold: Column
    ends: Column
    shown: Column
    efficiency: Column
    load: Column
    load_ends: Column
    flop: Column  # s of an SM for a FLOP at the dense rate
    itemsize: Column  # B of an element of A
    element: Column  # B of C for an element of the product
    by_threads: Column  # whether threads store C, and TMA doesn't
    epilogue: Column  # s of an SM for an element
    turned: Column  # operands that are transposed in shared memory
    ffma: Column  # whether no tensor core multiplies
    pairs: Column  # time of a k-step relative to a plain product's
    resident: Column  # `CostHint`
    level: Column
    turns: Column
    exchanges: Column
    gathering: Column


class Tile(NamedTuple):
    """What follows from the config as well, of one program; of A and B where it says operands."""

    m: Column
    n: Column
    k: Column
    cut: Column  # elements at whose multiples K is split
    split: Column
    drains: Column  # fixed parts of K that follow another one
    cluster: Column
    room: Column  # programs that have room at once
    together: Column  # programs on an SM
    flying: Column  # k-steps whose loads are in flight
    flops: Column  # FLOP of a k-step
    loads: Column  # loads of a k-step, where tiles are alike
    accumulators: Column  # of all threads, where tiles are alike
    drawn: Column  # B of a k-step from L2, of the operands
    lines: Column  # share of the operands' rows of 128 bytes that touch a second line of L2
    sectors: Column  # share of them that begin inside a sector
    own: Column  # elements of C
    run: Column  # B of C beside each other that are stored at a time
    slow: Column  # time of the epilogue relative to `View.epilogue`
    step: Column  # `Rung.tiles`
    late: Column
    hungry: Column


class Columns(NamedTuple):
    """The candidates of one device, whose tiles are all alike, or none are."""

    sms: int
    l2: int  # B of operands that L2 keeps beside all else
    alike: bool
    view: View
    tile: Tile


class Kind:
    """Problems that differ in nothing but their sizes; the arguments are what `kind_of` asks."""

    def __init__(
        self,
        device: Device,
        dtype: torch.dtype,
        precision: str,
        element: int,  # bytes of C for an element of the product
        layouts: str,
        wide: tuple[bool, bool],  # whether loads of A and B are 16 bytes wide
        pitches: tuple[int, int],  # bytes that divide the distance of their lines, up to LINE
        c_major: str,
        epilogue: tuple[bool, str, int],  # a bias; an activation; bytes of a residual's element
    ):
        bias, activation, residual = epilogue
        self.itemsize, self.element, self.layouts, self.pitches = (
            dtype.itemsize, element, layouts, pitches
        )  # fmt: skip
        self.narrow = tuple(not each for each in wide)
        rate = gpus.flop_rate(dtype, precision, device)
        self.flop = device.sms / rate  # s of an SM for a FLOP at the dense rate
        #: Energy of a FLOP relative to one of 16-bit operands.
        self.hungry = gpus.flop_rate(torch.float16, "ieee", device) / rate
        # s of an element's load, where none was timed: what an SM reads from L2 at best.
        self.load = self.itemsize / (_BYTES * gpus.physics(device).clock)
        self.types = precision if dtype == torch.float32 else str(dtype).rpartition(".")[2]
        if self.itemsize == 2:
            self.types = "16-bit"
        self.ffma = self.types == "ieee"
        if self.ffma:
            self.hungry = 0.0  # it stays below the power limit
        # The tensor cores read only 16-bit operands along M or N; others are transposed first.
        turns = dtype == torch.int8 or self.types[:2] in ("tf", "bf")
        self._turned = turns * (layouts[0] != "N"), turns * (layouts[1] != "T")
        if self.ffma and sm90.has_tma(device):
            # FFMA's B alone: where it is stored by columns, no swizzle keeps the lanes of a warp
            # along N from reading the same banks.
            self._turned = 0, int(layouts[1] == "T")
        # Columns of B that are requested together: those of a line, where it is stored by rows.
        self.along = LINE // self.itemsize if layouts[1] == "N" else 1
        self.by_threads, self.by_rows = not by_tma(c_major), c_major in ("N", "n")
        self.epilogue = (  # seconds of an SM for an element
            _BIAS * bias + _ACTIVATION[activation] + _RESIDUAL_BYTE * residual
        )
        self.adds, self.pairs = residual > 0, activation in GATED
        self.across = layouts[0] == "T", layouts[1] == "N"  # stored across K
        #: What `columns` keeps of each rung: the constants, and what follows from them.
        self.rows: dict[Kernel, tuple[Constants, tuple, Mapping]] = {}

    def turned(self, kernel: Kernel) -> int:
        """The number of operands that a rung transposes in shared memory, if it has any there."""
        if kernel.cost.independent_ctas:
            return 0
        a, b = self._turned
        return b if kernel.cost.a_registers else a + b

    def word(self, kernel: Kernel) -> str:
        """The name under which k-steps of these types and loads were timed."""
        cost, word = kernel.cost, self.types
        if cost.narrow != 1 and any(self.narrow):
            word += "/narrow-" + "ab"[not self.narrow[0] : 1 + self.narrow[1]]
        if count := self.turned(kernel):
            word += f"/turned-{count}"
        if cost.a_registers and self._turned[0]:
            word += REGISTERS
        return word + (f"/{self.layouts}" if cost.independent_ctas else "")


@kept
def kind_of(view: Problem) -> Kind:
    """The kind of a problem as a kernel sees it."""
    a, b, c, epilogue = view.a, view.b, view.c, view.epilogue
    residual = epilogue.residual.dtype.itemsize if epilogue.residual else 0
    return _kind(
        view.device,
        a.dtype,
        view.precision,
        c.dtype.itemsize // epilogue.per_column,
        a.layout + b.layout,
        (a.vectorised, b.vectorised),
        (_pitch(a), _pitch(b)),
        _c_major(c),
        (epilogue.bias is not None, epilogue.activation, residual),
    )


_kind = functools.lru_cache(maxsize=1024)(Kind)


def _pitch(matrix: Matrix) -> int:
    """The largest power of two, up to a line of L2, that divides the bytes from row to row (or from
    column to column) of `matrix`."""
    pitch = matrix.pitch(matrix.layout) if matrix.layout != "-" else 1
    return math.gcd(pitch * matrix.dtype.itemsize, LINE)


def _c_major(matrix: Matrix) -> str:
    """How C is stored: along rows (N) or columns (T); by threads (n, t) where its lines don't begin
    on 16-byte boundaries."""
    layout = matrix.layout
    if matrix.aligned and _pitch(matrix) % 16 == 0:
        return layout
    return "t" if layout == "T" else "n"


def columns_of(groups: Sequence[Group], constants: Constants) -> Columns:
    """A column has the configs of all groups, one group after another."""
    device, alike = groups[0].view.device, groups[0].kernel.cost.independent_ctas
    rows: list[tuple] = []
    factors: list[tuple[float, ...]] = []
    for group in groups:
        view, kind = group.view, kind_of(group.view)
        known, fixed, timed = kind.rows.get(group.kernel, (None, (), {}))
        if known is not constants:
            fixed, timed = _fixed(group.kernel, kind, constants)
            kind.rows[group.kernel] = constants, fixed, timed
        sizes = view.M, view.N, view.K, view.batch, view.epilogue.symmetric, view.bytes
        stored = view.M * view.N * view.batch * kind.element
        rows.append((*sizes, stored, group.copied, view.flops * kind.hungry, *fixed))
        # 1 of a tile that was not timed, or takes as long as predicted.
        numbers = (config.numbers for config in group.configs)
        factors += [timed.get((*tile[:5], tile[6]), (1.0, 1.0, 1.0)) for tile in numbers]
    columns = np.array(rows, dtype=float).T
    columns = np.repeat(columns, [len(group.configs) for group in groups], axis=1)
    configs = np.array([c.numbers for group in groups for c in group.configs], dtype=float)
    count = len(View._fields)
    seen = View(*columns[:count])
    timings = np.array(factors, dtype=float).T
    tile = _tile(device, alike, seen, columns[count:], timings, *configs.T)
    return Columns(device.sms, gpus.physics(device).l2, alike, seen, tile)


def _fixed(kernel: Kernel, kind: Kind, constants: Constants) -> tuple[tuple, Mapping]:
    """Those numbers of `View` that the sizes don't change, and what else `_tile` needs; and the
    factors of `Rung.tiles`."""
    cost, word, rung = kernel.cost, kind.word(kernel), constants.rung(kernel)
    numbers = (
        rung.launch, rung.cold, rung.ends, rung.shown, constants.efficiency(kernel, word),
        *rung.load.get(word, (kind.load, constants.ends)),
        kind.flop, kind.itemsize, kind.element, kind.by_threads, kind.epilogue,
        kind.turned(kernel), kind.ffma, _PAIRS if kind.pairs and cost.pingpong else 1.0,
        cost.persistent, cost.stream_k, cost.pingpong, cost.exchanges, cost.gathering,
        *kind.pitches, *kind.across, *(cost.narrow if narrow else 1 for narrow in kind.narrow),
        kind.along, kind.by_rows, kind.adds,
    )  # fmt: skip
    return numbers, rung.tiles.get(word, {})


def _tile(device: Device, alike: bool, view: View, more, factors, m, n, k, warps, stages, split,
          cluster, parts) -> Tile:  # fmt: skip
    run: Column
    pitches, across, narrow, (along, by_rows, adds) = more[:2], more[2:4], more[4:6], more[6:]
    area, threads = m * n, 32 * warps
    if alike:
        # A line's words are read by lanes beside each other, each with an accumulator for each line
        # and word; or, where lanes run along N, for each row of B and element.
        accumulators = area * k // np.where(across[1], 1, WORD_BYTES // view.itemsize)
        registers = n * k * stages * view.itemsize // 4 + accumulators + _FEW_REGISTERS * threads
        together = np.minimum(sm80.REGISTERS // registers, sm80.THREADS // threads)
        # An element's share of a load of four, of 16 bits each, and four times what a product
        # takes. If A is stored across K, each of its elements is a load.
        loads = k * (n + (1 + 3 * across[0]) * m + area / 4)
        run, flying = POINTER_COLUMNS, stages
    else:
        accumulators = loads = 0 * m
        ring = (m + n) * k * view.itemsize * stages
        together = np.minimum(sm80.REGISTERS // (area + _OTHER_REGISTERS * threads), 16)
        together = np.where(view.resident, 1, np.minimum(together, device.shared // ring))
        pieces = np.gcd(n.astype(int), POINTER_COLUMNS)
        run, flying = np.where(by_rows, pieces, POINTER_COLUMNS), np.maximum(stages - 1, 1)
    together = np.maximum(1, together)
    wide = np.array((m, np.ceil(n / along) * along)) * narrow  # elements of K beside each other
    # The rows of a tile that is stored across K begin wherever the tile before it ends.
    begin = (across * (m, n) * view.itemsize).astype(int)
    pitches = np.gcd(pitches.astype(int), begin)
    # Of 64 rows and few columns, a product takes less time than to read its operands again.
    thin = np.maximum(1, (_REREAD + n / 4) / (n / 2))
    cramped = (adds * view.turns > 0) & (area > LOADED_AHEAD * threads)
    return Tile(
        m, n, k,
        cut=np.where(parts > 1, CUT, k),
        split=split,
        drains=np.where(parts > split, parts - 1, 0),
        cluster=cluster,
        room=_room(device)[np.where(view.exchanges, split, cluster).astype(int)],
        together=together,
        flying=flying * (1 if alike else together),
        flops=2 * area * k * thin,
        loads=loads,
        accumulators=accumulators,
        drawn=wide * (k * view.itemsize),
        lines=1 - pitches / LINE,
        sectors=1 - np.minimum(pitches / SECTOR, 1),
        own=area / np.where(view.exchanges, split, 1),
        run=view.element * run,
        slow=np.where(cramped, _CRAMPED, 1),
        step=factors[0],
        late=factors[1],
        hungry=factors[2],
    )  # fmt: skip


@functools.lru_cache
def _room(device: Device) -> np.ndarray:
    """Programs that have room at once, by the programs of a cluster."""
    return np.array([0.0, *(max(1, gpus.clusters_at_once(n, device)) * n for n in range(1, 9))])
