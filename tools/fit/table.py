"""Samples as tensors, of which the cost model's formula is worked out, and differentiated."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tritemm.dispatch.cost_model import constants as known
from tritemm.dispatch.cost_model import model
from tritemm.dispatch.cost_model.columns import (
    Columns,
    Group,
    Tile,
    View,
    columns_of,
    kind_of,
    tile_of,
)
from tritemm.dispatch.cost_model.constants import Constants, Rung
from tritemm.spec import Kernel

from .samples import Sample

#: Fields of `Rung` that are one number each, and those of `Tile` that `Rung.tiles` has.
PLAIN = ("launch", "cold", "ends", "shown")
FACTORS = ("step", "late")


class Numbers(NamedTuple):
    """Constants as tensors: by name, of each rung, and of each rung and `Kind.word`."""

    rates: Mapping[str, Tensor]
    by_rung: Mapping[str, Tensor]
    by_word: Mapping[str, Tensor]  # of `load` two numbers each
    by_tile: Mapping[str, Tensor]  # of each rung, word and `tile_of`: `Rung.tiles`


class TensorNames:
    """What the formula takes of NumPy, for tensors and plain numbers beside each other."""

    ceil = staticmethod(torch.ceil)
    where = staticmethod(torch.where)

    @staticmethod
    def maximum(a, b) -> Tensor:
        return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))

    @staticmethod
    def minimum(a, b) -> Tensor:
        return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


class Table:
    """Samples of one device; `rungs`, `words` and `tiles` are what their rows refer to."""

    def __init__(self, samples: Sequence[Sample]):
        self.device = samples[0].problem.device
        self.rungs: dict[str, Kernel] = {}
        self.words: dict[tuple[str, str], float] = {}  # with what a load is taken for
        self.rows, self.columns = [], []
        groups = [self._group(sample) for sample in samples]
        rungs, words = list(self.rungs), list(self.words)
        self.rung = torch.tensor([rungs.index(group.kernel.name) for group in groups])
        self.word = torch.tensor([words.index(_word(group)) for group in groups])
        tiles = [(*_word(group), tile_of(group.configs[0].numbers)) for group in groups]
        self.tiles = {tile: index for index, tile in enumerate(dict.fromkeys(tiles))}
        self.tile = torch.tensor([self.tiles[tile] for tile in tiles])
        start = known.analytic(self.device)
        for alike in (False, True):
            rows = [
                i for i, group in enumerate(groups) if group.kernel.cost.independent_ctas == alike
            ]
            if rows:
                self.rows.append(torch.tensor(rows))
                self.columns.append(_tensors(columns_of([groups[i] for i in rows], start)))

    def _group(self, sample: Sample) -> Group:
        view = sample.config.view(sample.problem)
        copied = sample.problem.copied(sample.config.PACK)
        group = Group(sample.kernel, (sample.config,), view, copied)
        self.rungs.setdefault(sample.kernel.name, sample.kernel)
        self.words.setdefault(_word(group), kind_of(view).load)
        return group

    def numbers(self, constants: Constants) -> Numbers:
        """`constants` as tensors; what they lack is what the model would take for it."""

        def column(values) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float64)

        rungs = [constants.rung(kernel) for kernel in self.rungs.values()]
        words = [(constants.rung(self.rungs[rung]), word) for rung, word in self.words]
        efficiency = [constants.efficiency(self.rungs[rung], word) for rung, word in self.words]
        loads = [
            rung.load.get(word, (load, constants.ends))
            for (rung, word), load in zip(words, self.words.values(), strict=True)
        ]
        factors = [
            constants.rung(self.rungs[rung]).factors(word, tile) for rung, word, tile in self.tiles
        ]
        return Numbers(
            {name: column([getattr(constants, name)])[0] for name in known.NUMBERS},
            {name: column(getattr(rung, name) for rung in rungs) for name in PLAIN},
            {"efficiency": column(efficiency), "load": column(loads)},
            {name: column(each[i] for each in factors) for i, name in enumerate(FACTORS)},
        )

    def of_rungs(self, names: Collection[str]) -> Numbers:
        """Which numbers are of rungs with these names; all, where there are none."""

        def mask(rungs: Iterable[str]) -> Tensor:
            return torch.tensor([not names or rung in names for rung in rungs])

        words, tiles = (rung for rung, _ in self.words), (rung for rung, *_ in self.tiles)
        return Numbers(torch.tensor(not names), mask(self.rungs), mask(words), mask(tiles))

    def seconds(self, numbers: Numbers) -> Tensor:
        """The seconds of each sample."""
        fixed = known.analytic(self.device)
        constants = dataclasses.replace(fixed, **numbers.rates)
        found = torch.empty(len(self.rung), dtype=torch.float64)
        for rows, columns in zip(self.rows, self.columns, strict=True):
            rung, word = self.rung[rows], self.word[rows]
            load, ends = numbers.by_word["load"][word].T
            view = columns.view._replace(
                efficiency=numbers.by_word["efficiency"][word],
                load=load,
                load_ends=ends,
                **{name: numbers.by_rung[name][rung] for name in PLAIN},
            )
            own = {name: values[self.tile[rows]] for name, values in numbers.by_tile.items()}
            tile = columns.tile._replace(**own)
            times = model.times(columns._replace(view=view, tile=tile), constants, TensorNames)
            found = found.index_put((rows,), times.total)
        return found

    def constants(self, numbers: Numbers, start: Constants) -> Constants:
        """`start` with these numbers."""
        rungs = {name: rung._asdict() for name, rung in start.rungs.items()}
        for i, (name, kernel) in enumerate(self.rungs.items()):
            own = rungs.setdefault(name, start.rung(kernel)._asdict())
            own |= {field: numbers.by_rung[field][i].item() for field in PLAIN}
            own |= {field: dict(own[field]) for field in ("efficiency", "load")}
            own["tiles"] = {word: dict(tiles) for word, tiles in own["tiles"].items()}
        columns = (numbers.by_word[field].tolist() for field in ("efficiency", "load"))
        for (name, word), efficiency, load in zip(self.words, *columns, strict=True):
            alike = self.rungs[name].cost.independent_ctas
            rungs[name]["load" if alike else "efficiency"][word] = load if alike else efficiency
        factors = zip(*(numbers.by_tile[name].tolist() for name in FACTORS), strict=True)
        for (name, word, tile), pair in zip(self.tiles, factors, strict=True):
            rungs[name]["tiles"].setdefault(word, {})[tile] = pair
        rates = {name: value.item() for name, value in numbers.rates.items()}
        made = {name: Rung(**values) for name, values in rungs.items()}
        return dataclasses.replace(start, **rates, rungs=made)


def _word(group: Group) -> tuple[str, str]:
    return group.kernel.name, kind_of(group.view).word(group.kernel)


def _tensors(columns: Columns) -> Columns:
    view = View(*map(torch.from_numpy, columns.view))
    tile = Tile(*(torch.as_tensor(column, dtype=torch.float64) for column in columns.tile))
    return columns._replace(view=view, tile=tile, still=None)
