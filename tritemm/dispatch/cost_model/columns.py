"""Candidates as columns of numbers, on which `model` computes all predictions at once."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ...arch import gpus, sm80, sm90
from ...arch.gemv import WORD_BYTES
from ...arch.limits import CUT
from ...arch.lines import by_tma
from ...arch.roles import LOADED_AHEAD, OWNERS
from ...arch.tiles import POINTER_COLUMNS
from ...problem import GATED, Device, Matrix, Problem, kept
from ...problem.config import Config
from ...runtime.bounded import Bounded
from ...spec import Kernel
from .constants import REGISTERS, Constants

#: Bytes of an L2 line, and of a sector, which is read and written as a whole.
LINE, SECTOR = 128, 32
#: Seconds of an SM for the epilogue of one element, measured on an H200: a bias, an activation, a
#: byte of a residual.
_BIAS = 35e-12
_ACTIVATION = {
    "": 0.0, "relu": 10e-12, "gelu": 105e-12, "gelu_tanh": 90e-12, "silu": 75e-12,
    "swiglu": 45e-12, "geglu": 60e-12, "residue": 10e-12,
}  # fmt: skip
_RESIDUAL_BYTE = 55e-12
#: Bytes per clock that an SM's loads bring in.
_BYTES = 56
#: Registers for a thread's addresses and indices besides its accumulators, and where it has no
#: ring.
_OTHER_REGISTERS, _FEW_REGISTERS = 64, 24
#: Cycles in which the tensor cores read the 64 rows of A that they multiply, of 16 elements each.
_REREAD = 16
#: If consumers take turns: the time of a step of pairs relative to the assumed time, which was
#: measured when nothing but the product drew power; and the time of the epilogue relative to the
#: usual one if a residual isn't prefetched.
_PAIRS, _CRAMPED = 0.88, 4 / 3

#: Seconds until a tile's group is found: what made the choices for 160 groupings the fastest on an
#: H200.
_FOUND = 3e-6

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
        return _whole(config, self.pack, self.swap) if self.pack or self.swap else config


@functools.lru_cache(maxsize=4096)
def _whole(config: Config, pack: str, swap: bool) -> Config:
    return dataclasses.replace(config, PACK=pack, SWAP=swap)


class View(NamedTuple):
    """What depends on the problem and the rung."""

    M: Column
    N: Column
    K: Column
    batch: Column
    symmetric: Column  # whether C is a triangle of tiles
    bytes: Column  # B of A, B and C, each once
    stored: Column  # B of C
    copied: Column  # B
    flops: Column  # FLOP of 16-bit operands that draw as much power
    found: Column  # s to find a tile's group, if nothing else happens meanwhile
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
    """What depends on the config as well, for one program; for A and B where it says operands."""

    m: Column
    n: Column
    k: Column
    cut: Column  # K is split at multiples of this many elements
    cuts: Column  # and this many k-steps
    split: Column
    drains: Column  # fixed parts of K that follow another one
    cluster: Column
    taller: Column  # whether it has more rows than columns
    room: Column  # programs that fit at once
    together: Column  # programs on an SM
    flying: Column  # k-steps whose loads are in flight
    flops: Column  # FLOP of a k-step
    loads: Column  # loads of a k-step, where tiles are alike
    accumulators: Column  # of all threads, where tiles are alike
    drawn: Column  # B of a k-step from L2, of the operands
    lines: Column  # share of the operands' rows of 128 bytes that touch a second line of L2
    sectors: Column  # share of them that begin inside a sector
    partial: Column  # B of its sums in fp32, and programs that share those of a tile at most
    owners: Column
    own: Column  # elements of C
    run: Column  # adjacent B of C that are stored at a time
    slow: Column  # time of the epilogue relative to `View.epilogue`
    step: Column  # `Rung.tiles`
    late: Column


class Still(NamedTuple):
    """What depends on these two and the constants, but not on the sizes."""

    products: Column  # square of the s of a k-step's products, where tiles come through a ring
    latency: Column  # and of the s until its loads are there
    a_drawn: Column  # B of a k-step from L2, including the unused parts of its lines
    b_drawn: Column
    power: Column  # s of a FLOP at the power limit
    ends: Column  # s of a tile besides its k-steps and the bytes that it stores
    stored: Column  # B of C of a tile; those stored slowly count more than once

    @staticmethod
    def of(view: View, tile: Tile, c: Constants, xp) -> Still:
        """The results for numbers, or for columns of them; `xp` has the functions of NumPy."""
        products = tile.flops * view.flop * (1 + c.turned * view.turned) / view.efficiency
        latency = c.latency / tile.flying
        a_drawn, b_drawn = (
            tile.drawn[i] * (1 + c.straddle * tile.lines[i] + c.off_sector * tile.sectors[i])
            for i in (0, 1)
        )
        by_threads = c.narrow_store * (1 + SECTOR / tile.run)  # a run stores two sectors in part
        by_tma = xp.maximum(tile.run, c.part_store) / tile.run
        stored = tile.own * view.element * xp.where(view.by_threads > 0, by_threads, by_tma)
        power = c.power + c.traffic * (1 / tile.m + 1 / tile.n)
        ends = view.ends * tile.late + c.drain * tile.drains
        squares = products * products, latency * latency
        return Still(*squares, a_drawn, b_drawn, power, ends, stored)


class Numbers:
    """The functions of NumPy that `Still.of` uses, for numbers."""

    maximum = staticmethod(max)

    @staticmethod
    def where(condition: bool, a: float, b: float) -> float:
        return a if condition else b


class Columns(NamedTuple):
    """The candidates of one device; either all their tiles are alike, or none are."""

    sms: int
    l2: int  # B of operands that L2 keeps besides all else
    alike: bool
    # Whether any candidate has these; terms that are zero for all are skipped.
    packed: bool
    symmetric: bool
    leveled: bool
    finished: bool  # by an epilogue
    by_ffma: bool
    in_parts: bool  # has K split
    view: View
    tile: Tile
    still: Still | None  # None where constants are fitted


class Kind:
    """Problems that differ only in their sizes; the arguments are what `kind_of` computes."""

    def __init__(
        self,
        device: Device,
        dtype: torch.dtype,
        precision: str,
        sums: str,  # `Problem.sums`, or "columns": blocks, and each column of B has its own scale
        element: int,  # bytes of C for an element of the product
        layouts: str,
        wide: tuple[bool, bool],  # whether loads of A and B are 16 bytes wide
        pitches: tuple[int, int],  # bytes that divide the distance of their lines, up to LINE
        c_major: str,
        epilogue: tuple[bool, str, int],  # a bias; an activation; bytes of a residual's element
    ):
        bias, activation, residual = epilogue
        self.device = device
        self.itemsize, self.element, self.layouts, self.pitches = (
            dtype.itemsize, element, layouts, pitches
        )  # fmt: skip
        self.narrow = tuple(not each for each in wide)
        rate = gpus.flop_rate(dtype, precision, device)
        self.flop = device.sms / rate  # s of an SM for a FLOP at the dense rate
        #: Energy of a FLOP relative to one of 16-bit operands; 0 if it stays below the power limit.
        self.hungry = gpus.flop_rate(torch.float16, "ieee", device) / rate
        # s of an element's load, if none was timed: an SM's best rate from L2.
        self.load = self.itemsize / (_BYTES * gpus.physics(device).clock)
        self.types = precision if dtype == torch.float32 else str(dtype).rpartition(".")[2]
        if self.itemsize == 2:
            self.types = "16-bit"
        elif self.itemsize == 1 and dtype.is_floating_point:
            self.types = "fp8" if sums == "whole" else f"fp8-{sums}"
        self.ffma = self.types == "ieee"
        if self.ffma:
            self.hungry = 0.0
        # The tensor cores read only 16-bit operands along M or N; others are transposed first.
        turns = self.itemsize == 1 or self.types[:2] in ("tf", "bf")
        self._turned = turns * (layouts[0] != "N"), turns * (layouts[1] != "T")
        if self.ffma and sm90.has_tma(device):
            # Only FFMA's B: if it is stored by columns, no swizzle keeps the lanes of a warp along
            # N from reading the same banks.
            self._turned = 0, int(layouts[1] == "T")
        # Columns of B that are requested together: those of a line, if it is stored by rows.
        self.along = LINE // self.itemsize if layouts[1] == "N" else 1
        self.by_threads, self.by_rows = not by_tma(c_major), c_major in ("N", "n")
        self.epilogue = (  # seconds of an SM for an element
            _BIAS * bias + _ACTIVATION[activation] + _RESIDUAL_BYTE * residual
        )
        self.adds, self.pairs = residual > 0, activation in GATED
        self.across = layouts[0] == "T", layouts[1] == "N"  # stored across K
        #: The tables that `columns_of` keeps for each rung.
        self.rows: dict[Kernel, Rows] = {}

    def turned(self, kernel: Kernel) -> int:
        """The number of operands that a rung transposes in shared memory, if it uses that."""
        if kernel.cost.independent_ctas or kernel.cost.register_tiles:
            return 0
        a, b = self._turned
        return b if kernel.cost.a_registers else a + b

    def word(self, kernel: Kernel) -> str:
        """The name under which k-steps with these types and loads were timed."""
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
        "columns" if view.sums == "block" and view.lines_per_scale[1] == 1 else view.sums,
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
    """How C is stored: along rows (N) or columns (T); by threads (n, t) if its lines don't begin
    on 16-byte boundaries."""
    layout = matrix.layout
    if matrix.aligned and _pitch(matrix) % 16 == 0:
        return layout
    return "t" if layout == "T" else "n"


def columns_of(groups: Sequence[Group], constants: Constants, even: bool = False) -> Columns:
    """One column per config of all groups, one group after another.

    `even`: as if everything that shares M or N had an equal part, not a typical one.
    """
    device, alike = groups[0].view.device, groups[0].kernel.cost.independent_ctas
    sizes: list[tuple] = []
    found: list[np.ndarray] = []
    packed = symmetric = leveled = finished = by_ffma = False
    for group in groups:
        view, kind = group.view, kind_of(group.view)
        rows = kind.rows.get(group.kernel)
        if rows is None or rows.constants is not constants:
            rows = kind.rows[group.kernel] = Rows(group.kernel, kind, constants)
        found += [rows[config.numbers] for config in group.configs]
        found_in = _FOUND if view.groups in ("m", "n") else 0.0
        sizes.append((*_sizes(view)[even], group.copied, view.flops * kind.hungry, found_in))
        packed |= group.copied > 0
        symmetric |= view.epilogue.symmetric
        leveled |= group.kernel.cost.stream_k
        finished |= view.epilogue.symmetric or kind.epilogue > 0
        by_ffma |= kind.ffma
    counts = [len(group.configs) for group in groups]
    of_sizes = np.repeat(np.array(sizes, dtype=float).T, counts, axis=1)
    table = np.concatenate(found).reshape(len(found), -1).T.copy()
    first = len(View._fields) - len(of_sizes)  # and the others of `View`
    seen, tile = View(*of_sizes, *table[:first]), table[first:]
    pairs = (tile[at : at + 2] for at in range(_SINGLE, _SINGLE + 6, 2))
    last = len(tile) - len(Still._fields)
    tiles = Tile(*tile[:_SINGLE], *pairs, *tile[_SINGLE + 6 : last])
    in_parts = leveled or bool((tiles.split > 1).any())
    return Columns(
        device.sms, gpus.physics(device).l2, alike,
        packed, symmetric, leveled, finished, by_ffma, in_parts, seen, tiles, Still(*tile[last:]),
    )  # fmt: skip


@kept
def _sizes(view: Problem) -> list[tuple[float, ...]]:
    """The first numbers of `View`, of typical groups and of even ones; M and N are rounded up."""
    numbers: list[tuple[float, ...]] = []
    for M, N, K, batch in (view.typical, view.shared(1.0)):
        stored = min(M * N * batch * kind_of(view).element, view.bytes)
        numbers.append((M, N, K, batch, view.epilogue.symmetric, view.bytes, stored))
    return numbers


class Rows(Bounded):
    """What `columns_of` needs of a rung's configs besides the sizes, by `Config.numbers`.

    Computed once for all problems of a kind, because there are fewer configs than sizes.
    """

    def __init__(self, kernel: Kernel, kind: Kind, constants: Constants):
        super().__init__(4096)
        self.kernel, self.kind, self.constants = kernel, kind, constants
        cost, word, rung = kernel.cost, kind.word(kernel), constants.rung(kernel)
        slow = cost.register_tiles and kind.layouts == "NT"
        #: Those numbers of `View` that the sizes don't change.
        self.view = (
            rung.launch, rung.cold, rung.ends, rung.shown,
            constants.efficiency(kernel, word) * (_ALONG_K if slow else 1),
            *rung.load.get(word, (kind.load, constants.ends)),
            kind.flop, kind.itemsize, kind.element, kind.by_threads, kind.epilogue,
            kind.turned(kernel), kind.ffma and not cost.register_tiles,
            _PAIRS if kind.pairs and cost.pingpong else 1.0,
            cost.persistent, cost.stream_k, cost.pingpong, cost.exchanges, cost.gathering,
        )  # fmt: skip
        nothing = [0.0] * (len(View._fields) - len(self.view))
        self.still_view = View._make([*nothing, *self.view])
        self.rung, self.word = rung, word

    def __missing__(self, numbers: tuple[int, ...]) -> np.ndarray:
        factors = self.rung.factors(self.word, tile_of(numbers))
        tile = _tile(self.kernel, self.kind, numbers, factors)
        singles, pairs, last = tile[:_SINGLE], tile[_SINGLE : _SINGLE + 3], tile[_SINGLE + 3 :]
        still = Still.of(self.still_view, tile, self.constants, Numbers)
        numbers_of = (*self.view, *singles, *itertools.chain(*pairs), *last, *still)
        row = np.array(numbers_of, dtype=float)
        self[numbers] = row
        return row


def tile_of(numbers: Sequence[int]) -> tuple[int, ...]:
    """The key of a `Config.numbers`'s tile in `Rung.tiles`."""
    return (*numbers[:5], numbers[6])


#: The rate of FFMA that is left if both operands are stored along K.
_ALONG_K = 0.93
#: The fields of `Tile` before those of two operands, which are three.
_SINGLE = Tile._fields.index("drawn")


def _tile(kernel: Kernel, kind: Kind, numbers: Sequence[int], factors: Sequence[float]) -> Tile:
    """The numbers of one config."""
    m, n, k, warps, stages, split, cluster, parts = numbers
    step, late = factors
    cost, itemsize, device = kernel.cost, kind.itemsize, kind.device
    area, threads = m * n, 32 * warps
    if cost.independent_ctas:
        # Adjacent lanes read a line's words, each with an accumulator for each line
        # and word; or, where lanes run along N, for each row of B and element.
        accumulators = area * k // (1 if kind.across[1] else WORD_BYTES // itemsize)
        registers = n * k * stages * itemsize // 4 + accumulators + _FEW_REGISTERS * threads
        together = max(1, min(sm80.REGISTERS // registers, sm80.THREADS // threads))
        # An element's share of a load of four, of 16 bits each, and four times what a product
        # takes. If A is stored across K, each of its elements is a load.
        loads = k * (n + (1 + 3 * kind.across[0]) * m + area / 4)
        run, flying = POINTER_COLUMNS, stages
    else:
        accumulators = loads = 0
        ring = (m + n) * k * itemsize * stages
        together = min(sm80.REGISTERS // (area + _OTHER_REGISTERS * threads), 16)
        together = max(1, 1 if cost.persistent else min(together, device.shared // ring))
        run = math.gcd(n, POINTER_COLUMNS) if kind.by_rows else POINTER_COLUMNS
        flying = max(stages - 1, 1) * together
    line = k * itemsize
    a_wide = m * (cost.narrow if kind.narrow[0] else 1)
    b_wide = -(-n // kind.along) * kind.along * (cost.narrow if kind.narrow[1] else 1)
    # The rows of a tile that is stored across K begin wherever the tile before it ends.
    a_pitch = math.gcd(kind.pitches[0], m * itemsize * kind.across[0])
    b_pitch = math.gcd(kind.pitches[1], n * itemsize * kind.across[1])
    # Of 64 rows and few columns, a product takes less time than to read its operands again.
    thin = max(1, (_REREAD + n / 4) / (n / 2))
    cramped = kind.adds and cost.pingpong and area > LOADED_AHEAD * threads
    cut = CUT if parts > 1 else k
    return Tile(
        m, n, k,
        cut=cut,
        cuts=cut / k,
        split=split,
        drains=parts - 1 if parts > split else 0,
        cluster=cluster,
        taller=m > n,
        room=_room(device)[split if cost.exchanges else cluster],
        together=together,
        flying=flying,
        flops=2 * area * k * thin,
        loads=loads,
        accumulators=accumulators,
        drawn=(a_wide * line, b_wide * line),
        lines=(1 - a_pitch / LINE, 1 - b_pitch / LINE),
        sectors=(1 - min(a_pitch / SECTOR, 1), 1 - min(b_pitch / SECTOR, 1)),
        partial=4 * area,
        owners=min(OWNERS, max(1, n // 8)),
        own=area / (split if cost.exchanges else 1),
        run=kind.element * run,
        slow=_CRAMPED if cramped else 1,
        step=step,
        late=late,
    )  # fmt: skip


@functools.lru_cache
def _room(device: Device) -> Sequence[int]:
    """Programs that fit at once, by the number of programs in a cluster."""
    return [0, *(max(1, gpus.clusters_at_once(n, device)) * n for n in range(1, 9))]
