"""Candidates as columns of numbers, of which `model` works out all at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arch import gpus
from ...arch.gemv import WORD_BYTES
from ...arch.limits import CUT
from ...arch.roles import LOADED_AHEAD
from ...arch.tiles import POINTER_COLUMNS
from ...problem import Device, Problem
from ...problem.config import Config
from ...spec import Kernel
from .constants import Constants
from .kind import LINE, SECTOR, Kind, kind_of

#: 32-bit registers and threads of an SM; the addresses and indices of a thread beside its
#: accumulators, and where it has no ring.
_REGISTERS, _THREADS = 65536, 2048
_OTHER_REGISTERS, _FEW_REGISTERS = 64, 24
#: Cycles in which the tensor cores read the 64 rows of A that they multiply, of 16 elements each.
_REREAD = 16
#: Where consumers take turns, a step of gated pairs takes so much of the time that stands for one,
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


def columns_of(groups: Sequence[Group], constants: Constants) -> Columns:
    """A column has the configs of all groups, one group after another."""
    device, alike = groups[0].view.device, groups[0].kernel.cost.independent_ctas
    rows = np.array([_row(group, constants) for group in groups], dtype=float)
    columns = np.repeat(rows.T, [len(group.configs) for group in groups], axis=1)
    configs = np.array([c.numbers for group in groups for c in group.configs], dtype=float)
    count = len(View._fields)
    view = View(*columns[:count])
    factors = [row for group in groups for row in _factors(group, constants)]
    factors = np.array(factors, dtype=float).T
    tile = _tile(device, alike, view, columns[count:], factors, *configs.T)
    return Columns(device.sms, gpus.physics(device).l2, alike, view, tile)


_ONE = (1.0, 1.0, 1.0)


def _factors(group: Group, constants: Constants) -> list[tuple[float, float, float]]:
    """Those of each config's tile; 1 of one that was not timed, or takes as long as predicted."""
    tiles = constants.rung(group.kernel).tiles
    known = tiles.get(kind_of(group.view).word(group.kernel)) if tiles else None
    if not known:
        return [_ONE] * len(group.configs)
    numbers = (config.numbers for config in group.configs)
    return [known.get((*tile[:5], tile[6]), _ONE) for tile in numbers]


def _row(group: Group, constants: Constants) -> tuple[float, ...]:
    """The numbers of `View`, and what else `_tile` needs."""
    view, kind = group.view, kind_of(group.view)
    known, fixed = kind.rows.get(group.kernel, (None, ()))
    if known is not constants:
        fixed = _fixed(group.kernel, kind, constants)
        kind.rows[group.kernel] = constants, fixed
    symmetric = view.epilogue.symmetric
    sizes = view.M, view.N, view.K, view.batch, symmetric, view.bytes
    stored = view.M * view.N * view.batch * kind.element
    return (*sizes, stored, group.copied, view.flops * kind.hungry, *fixed)


def _fixed(kernel: Kernel, kind: Kind, constants: Constants) -> tuple[float, ...]:
    """Those of them that the sizes don't change."""
    cost, word, rung = kernel.cost, kind.word(kernel), constants.rung(kernel)
    return (
        rung.launch, rung.cold, rung.ends, rung.shown, constants.efficiency(kernel, word),
        *rung.load.get(word, (kind.load, constants.ends)),
        kind.flop, kind.itemsize, kind.element, kind.by_threads, kind.epilogue,
        kind.turned(kernel), _PAIRS if kind.gated and cost.pingpong else 1.0,
        cost.persistent, cost.stream_k, cost.pingpong, cost.exchanges, cost.gathering,
        *kind.pitches, *kind.across, *(cost.narrow if narrow else 1 for narrow in kind.narrow),
        kind.along, kind.by_rows, kind.adds,
    )  # fmt: skip


def _tile(device: Device, alike: bool, view: View, more, factors, m, n, k, warps, stages, split,
          cluster, parts) -> Tile:  # fmt: skip
    pitches, across, narrow, (along, by_rows, adds) = more[:2], more[2:4], more[4:6], more[6:]
    area, threads = m * n, 32 * warps
    if alike:
        # A line's words are read by lanes beside each other, each with an accumulator for each line
        # and word; or, where lanes run along N, for each row of B and element.
        accumulators = area * k // np.where(across[1], 1, WORD_BYTES // view.itemsize)
        registers = n * k * stages * view.itemsize // 4 + accumulators + _FEW_REGISTERS * threads
        together = np.minimum(_REGISTERS // registers, _THREADS // threads)
        # An element's share of a load of four, of 16 bits each, and four times what a product
        # takes. If A is stored across K, each of its elements is a load.
        loads = k * (n + (1 + 3 * across[0]) * m + area / 4)
        run, flying = POINTER_COLUMNS, stages
    else:
        accumulators = loads = 0 * m
        ring = (m + n) * k * view.itemsize * stages
        together = np.minimum(_REGISTERS // (area + _OTHER_REGISTERS * threads), 16)
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
