"""The model over many samples at once, with tensors for its numbers: what a fit differentiates.

The sums are those of `model.Scene`, which works one candidate out without a tensor, as a choice
needs; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...arch import gpus
from ...arch.limits import CUT
from ...arch.roles import OWNERS
from ...arch.tiles import POINTER_COLUMNS
from ...problem.config import Config
from ...spec import Kernel
from . import constants as known
from .constants import BY_RUNG, Constants
from .kind import SECTOR, Kind, facts_of
from .model import BRIEF, BURST, Scene, pack_bytes
from .samples import Sample


class Numbers(NamedTuple):
    """Those of `Constants` as tensors: one each, one for each rung, or rung and word, and two or
    three for each tile."""

    rates: Mapping[str, Tensor]
    by_rung: Mapping[str, Tensor]
    by_word: Mapping[str, Tensor]
    by_tile: Mapping[str, Tensor]


class Table:
    """Samples of one device as columns; `rungs`, `words` and `tiles` are what their rows refer to.

    `tiles` are the keys of `Constants.tiles` and, where tiles are alike, of `Constants.loads`.
    """

    def __init__(self, samples: Sequence[Sample]):
        self.device = samples[0].problem.device
        self.rungs: dict[str, Kernel] = {}
        self.words: dict[tuple[str, str], int] = {}
        self.tiles: dict[tuple[str, known.Key], int] = {}
        self._examples: list[tuple[Config, tuple]] = []  # of each tile, with facts of a problem
        kinds: dict[tuple, Kind] = {}
        rows = [self._row(sample, kinds) for sample in samples]
        self.columns = {
            name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]
        }
        places = (self.columns[name].long() for name in ("rung", "word", "tile"))
        self.rung, self.word, self.tile = places
        self.alike = self.columns["alike"] > 0

    def _row(self, sample: Sample, kinds: dict[tuple, Kind]) -> dict[str, float]:
        """What of a sample the formulas need, each a number."""
        kernel, config, cost = sample.kernel, sample.config, sample.kernel.cost
        view = config.view(sample.problem)
        facts = facts_of(view)
        kind = kinds.setdefault(facts, Kind(view.device, facts, known.analytic(view.device)))
        scene = Scene(view, pack_bytes(sample.problem, config.PACK), kind)
        self.rungs.setdefault(kernel.name, kernel)
        word = kernel.name, kind.word(cost)
        tile = kernel.name, known.key(cost, kind.word(cost), config)
        if tile not in self.tiles:
            self.tiles[tile] = len(self.tiles)
            self._examples.append((config, facts))
        m, n, k, split = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, config.SPLIT_K
        programs = split if cost.exchanges else config.CLUSTER
        a_bytes, b_bytes = kind.drawn(cost, config)
        (a_lines, a_sectors), (b_lines, b_sectors) = kind.straddling(config)
        return {
            "rung": list(self.rungs).index(kernel.name),
            "word": self.words.setdefault(word, len(self.words)),
            "tile": self.tiles[tile],
            "alike": cost.independent_ctas,
            "resident": cost.persistent,
            "level": cost.stream_k,
            "turns": cost.pingpong,
            "exchanges": cost.exchanges,
            "gathering": cost.gathering,
            "m": m,
            "n": n,
            "depth": k,
            "split": split,
            "cut": CUT if config.PARTS > 1 else k,
            "cluster": config.CLUSTER,
            "room": max(1, gpus.clusters_at_once(programs, kind.device)) * programs,
            "together": 1 if cost.persistent else kind.together(cost, config),
            "in_flight": config.num_stages
            if cost.independent_ctas
            else max(config.num_stages - 1, 1),
            "products": kind.products(config),
            "per_step": kind.per_step(config) if cost.independent_ctas else 0.0,
            "sums": kind.sums(config) if cost.independent_ctas else 0.0,
            "a_bytes": a_bytes,
            "b_bytes": b_bytes,
            "a_lines": a_lines,
            "b_lines": b_lines,
            "a_sectors": a_sectors,
            "b_sectors": b_sectors,
            "turned": kind.turned(cost),
            "own": m * n / split if cost.exchanges else m * n,
            "out": kind.out,
            "run": kind.run(POINTER_COLUMNS if cost.independent_ctas else n),
            "by_threads": kind.by_threads,
            "drains": config.PARTS - 1 if split < config.PARTS else 0,
            "M": view.M,
            "N": view.N,
            "K": view.K,
            "batch": view.batch,
            "bytes": view.bytes,
            "read": scene.read,
            "copied": scene.copied,
            "flops": scene.flops,
            "itemsize": kind.itemsize,
            "sms": kind.sms,
            "l2": gpus.physics(view.device).l2,
        }

    def numbers(self, constants: Constants) -> Numbers:
        """Of `constants`, of which a tile that it lacks has what a Scene would take for it."""

        def column(values) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float64)

        of_rungs = [constants.of_rung(kernel) for kernel in self.rungs.values()]
        factors = [constants.factors(self.rungs[rung], key) for rung, key in self.tiles]
        shares = [constants.efficiency(self.rungs[rung], word) for rung, word in self.words]
        loads = [
            self._load(constants, self.rungs[rung], *example)
            for (rung, _), example in zip(self.tiles, self._examples, strict=True)
        ]
        return Numbers(
            {name: column([getattr(constants, name)])[0] for name in Constants.RATES},
            {name: column(getattr(one, name) for one in of_rungs) for name in BY_RUNG},
            {"efficiencies": column(shares)},
            {"tiles": column(factors), "loads": column(loads)},
        )

    def _load(
        self, constants: Constants, kernel: Kernel, config: Config, facts: tuple
    ) -> tuple[float, float]:
        """`Kind.load`; of no use to tiles that aren't alike."""
        if not kernel.cost.independent_ctas:
            return 1.0, 1.0
        return Kind(self.device, facts, constants).load(kernel, config)

    def seconds(self, numbers: Numbers, drain: float = 0.0) -> Tensor:
        """Of each sample."""
        x, c = self.columns, numbers.rates
        of = {name: values[self.rung] for name, values in numbers.by_rung.items()}
        before = of["launches"] + of["colds"] * x["bytes"] / (x["bytes"] + BURST)
        before = before + torch.where(
            x["copied"] > 0, c["pack"] + x["copied"] / c["memory_rate"], 0.0
        )
        return before + torch.where(
            self.alike, self._alike(numbers), self._ring(numbers, of, drain)
        )

    def _ring(self, numbers: Numbers, of: Mapping[str, Tensor], drain: float) -> Tensor:
        x, c = self.columns, numbers.rates
        m, n, cluster, level = x["m"], x["n"], x["cluster"], x["level"] > 0
        factor, late, hungry = numbers.by_tile["tiles"][self.tile].T
        M, N, batch, sms = x["M"], x["N"], x["batch"], x["sms"]

        high, wide = _up(M, m * cluster) * _up(N, n), _up(M, m) * _up(N, n * cluster)
        turned = (cluster > 1) & ((wide < high) | ((wide == high) & (m > n)))
        a_sharers, b_sharers = torch.where(turned, cluster, 1), torch.where(turned, 1, cluster)
        whole = cluster * torch.where(turned, wide, high) * batch
        beyond = _beyond(M, m * b_sharers) + _beyond(N, n * a_sharers)
        rest = whole % sms
        sharers = torch.minimum(rest * x["split"], sms)
        tiles = torch.where(level, whole, whole * x["split"])
        split = torch.where(
            level, torch.where(rest > 0, _up(sharers, rest.clamp(min=1)), 1), x["split"]
        )
        part = torch.where(rest > 0, rest / sharers.clamp(min=1), 0)
        share = torch.where(level, whole // sms + part, _up(tiles, x["room"]))
        active = torch.where(
            level, torch.where(whole >= sms, sms, sharers), torch.minimum(tiles, sms)
        )
        steps = torch.where(
            level, _up(x["K"], x["depth"]),
            _up(_up(x["K"], x["cut"]), x["split"]) * (x["cut"] / x["depth"]),
        )  # fmt: skip

        products = (
            x["products"]
            * (1 + c["turned"] * x["turned"])
            / numbers.by_word["efficiencies"][self.word]
        )
        a_more, b_more = (
            1 + c["straddle"] * x[f"{name}_lines"] + c["off_sector"] * x[f"{name}_sectors"]
            for name in "ab"
        )
        drawn = x["a_bytes"] / a_sharers * a_more + x["b_bytes"] / b_sharers * b_more
        alone = products**2 + (drawn / c["sm_rate"]) ** 2
        alone = alone + (c["latency"] / (x["in_flight"] * x["together"])) ** 2

        def step(programs: Tensor) -> Tensor:
            return factor * (alone + (drawn / c["l2_rate"] * programs) ** 2).sqrt()

        last = tiles - (share - 1) * x["room"]
        rounds = step(last) + (share - 1).clamp(min=0) * step(x["room"])
        work = steps * torch.where(level, share * step(active), rounds)
        work = work * (1 + c["throttle"] * work / (work + BRIEF))

        rate = torch.minimum(c["sm_memory_rate"], c["memory_rate"] / active)
        stored = self._stored(c)
        ends = of["ends_of"] * late + x["drains"] * drain + stored * x["own"] / rate
        ends = ends * torch.where(
            x["resident"] > 0, 1 + (share - 1).clamp(min=0) * of["shown"], _up(share, x["together"])
        )
        parts = torch.where(level, 1 + split, _parts(share, split, n))
        summed = c["reduction"] + split * c["gather"] + parts * 4 * m * n / c["sum_rate"]
        sent = 4 * m * n * (1 - 1 / split)
        exchanged = share * (c["exchange"] + sent / c["exchange_rate"])
        reduction = torch.where(x["exchanges"] > 0, exchanged, torch.where(split > 1, summed, 0.0))

        read = x["bytes"] + c["padding"] * beyond * x["K"] * batch * x["itemsize"]
        again = level & (whole < sms) & (x["bytes"] > x["l2"])
        streamed = torch.maximum(x["bytes"], whole * (m + n) * x["K"] * x["itemsize"])
        moved = torch.where(again, torch.maximum(read, streamed), read)
        memory = moved / c["memory_rate"]
        each = moved / torch.where(level, active, tiles)
        last, pairs = torch.where(level, active, last), sms / 2
        before = moved - each * torch.where(last <= pairs, last, last - pairs)
        late = before / c["memory_rate"] + each / c["pair_rate"]
        late = torch.where(x["room"] == sms, late, 0.0)
        power = hungry * x["flops"] * (c["power"] + c["traffic"] * (1 / m + 1 / n))
        busy = torch.maximum(work + ends + reduction, power)
        beyond_l2 = (x["bytes"] * (1 - x["read"]) - x["l2"]).clamp(min=0)
        at_once = active * x["together"] * m * n * x["out"] * (1 + x["turns"])
        crowd = torch.where(c["crowd"] > 0, at_once / c["crowd"].clamp(min=1.0), 0.0)
        crowded = torch.maximum(memory, late) + beyond_l2 / c["memory_rate"] * crowd
        longest = torch.maximum(busy, crowded)
        return longest + c["overlap"] * torch.minimum(busy, memory * x["read"])

    def _alike(self, numbers: Numbers) -> Tensor:
        x, c = self.columns, numbers.rates
        m, n, split, sms = x["m"], x["n"], x["split"], x["sms"]
        load, ends = numbers.by_tile["loads"][self.tile].T
        tiles = _up(x["M"], m) * _up(x["N"], n) * x["batch"] * split
        steps = _up(_up(x["K"], x["depth"]), split)
        share, active = _up(tiles, sms), torch.minimum(tiles, sms)
        groups = (share / x["together"]).clamp(min=1)
        work = steps * share * load * x["per_step"] / (1 + c["boost"] * (1 - tiles / (share * sms)))
        rate = torch.minimum(c["sm_memory_rate"], c["memory_rate"] / active)
        stored = self._stored(c)
        ends = (ends + c["lanes"] * x["sums"] + stored * m * n / rate) * share
        reduction = x["gathering"] * (c["reduction"] + split * c["gather"])
        reduction = reduction + _parts(share, split, n) * 4 * m * n / c["sum_rate"]
        busy = work + ends + torch.where(split > 1, reduction, 0.0)
        waits = steps * c["wait"] / (x["in_flight"] * groups)
        return torch.maximum(busy, x["bytes"] / (active * rate)) + waits

    def _stored(self, c: Mapping[str, Tensor]) -> Tensor:
        """`Kind.stored`."""
        out, run = self.columns["out"], self.columns["run"]
        by_engine = (c["part_store"] / run).clamp(min=1)
        by_threads = c["narrow_store"] * (1 + SECTOR / run)
        return out * torch.where(self.columns["by_threads"] > 0, by_threads, by_engine)


def _up(size: Tensor, by: Tensor) -> Tensor:
    return torch.ceil(size / by)


def _beyond(size: Tensor, by: Tensor) -> Tensor:
    """How far the last of steps of `by` goes beyond `size`."""
    return _up(size, by) * by - size


def _parts(share: Tensor, split: Tensor, n: Tensor) -> Tensor:
    """How often a sum of a part is written or read."""
    owners = (n // 8).clamp(1, OWNERS)
    return torch.where(share > 1, share + split, 1 + (split / owners).clamp(min=1))
