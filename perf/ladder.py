"""The ladder's competitors: every rung, its configs or those of a file, and cuBLAS."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tritemm import launch
from tritemm.problem import Problem, short_name
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel, find

from .engine import Competitor
from .rows import HALF, NULL, REFERENCE, TRITON

Multiply = Callable[[Any, Any, Any], None]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A config from a file: {"rung": "persistent", "BLOCK_M": 128, ...}."""

    rung: str
    config: Config

    @property
    def name(self) -> str:
        c = self.config
        group = c.GROUP_M if c.ORDER == "grouped" else ""
        tile = f"{c.BLOCK_M}x{c.BLOCK_N}x{c.BLOCK_K}"
        return f"{self.rung} {tile} w{c.num_warps} s{c.num_stages} {c.ORDER}{group}"


def refuse_unknown(words: Iterable[str], kernels: Sequence[Kernel] = RUNGS) -> None:
    """Raises ValueError if a word names no rung."""
    for word in words:
        find(word, kernels)


def read_candidates(path: Path) -> list[Candidate]:
    """A JSON list of objects with "rung" and the fields of `Config`; raises ValueError if not."""
    candidates = []
    for index, entry in enumerate(json.loads(Path(path).read_text())):
        try:
            fields = dict(entry)
            rung = fields.pop("rung", None)
            refuse_unknown([rung])
            candidates.append(Candidate(rung, Config(**fields)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, entry {index}: {error}") from error
    return list(dict.fromkeys(candidates))  # a competitor's name must be its own


def competitors(
    problem: Problem,
    reference: Callable[[str], Multiply],
    *,
    kernels: Sequence[Kernel] = RUNGS,
    only: Collection[str] = (),
    configs: str = "first",
    candidates: Sequence[Candidate] = (),
) -> list[Competitor]:
    """The rungs (those in `only`, if any) with their first config, all or none; then cuBLAS.

    `reference(accumulate)` is torch.matmul with that accumulator.
    """
    rungs = of_kernels(problem, kernels, only=only, configs=configs, candidates=candidates)
    return [*rungs, *cublas(problem, reference)]


def cublas(problem: Problem, reference: Callable[[str], Multiply]) -> list[Competitor]:
    """The reference, its null twin, and cuBLAS with an fp16 accumulator where that is asked for."""
    accumulate = short_name(problem.accumulate)
    default = "fp32" if accumulate == "fp16" else accumulate
    found = [Competitor(name, reference(default), accumulate=default) for name in (REFERENCE, NULL)]
    return found + [Competitor(HALF, reference("fp16"))] * (accumulate == "fp16")


def of_kernels(
    problem: Problem,
    kernels: Sequence[Kernel],
    *,
    ladder: str = TRITON,
    only: Collection[str] = (),
    configs: str = "first",
    candidates: Sequence[Candidate] = (),
) -> list[Competitor]:
    """The rungs of one ladder, in the configs that were asked for."""
    found: list[Competitor] = []
    for kernel in kernels:
        mine = [(c.name, c.config) for c in candidates if c.rung == kernel.name]
        named = list(_named(kernel, problem)) if not only or kernel.name in only else []
        wanted = {"first": named[:1], "all": named, "none": []}[configs] + mine
        found += [_competitor(kernel, problem, ladder, name, config) for name, config in wanted]
    return found


def _named(kernel: Kernel, problem: Problem) -> Iterator[tuple[str, Config | None]]:
    """`tma`, `tma[1]`, ... and their configs; a kernel that refuses may have none to offer."""
    if kernel.why_not(problem):
        yield kernel.name, None
        return
    for index, config in enumerate(kernel.configs(problem)):
        yield kernel.name + (f"[{index}]" if index else ""), config


def _competitor(
    kernel: Kernel, problem: Problem, ladder: str, name: str, config: Config | None
) -> Competitor:
    def run(a, b, c) -> None:
        own = Problem.of(
            a, b, c,
            accumulate=problem.accumulate, precision=problem.precision, device=problem.device,
        )  # fmt: skip
        launch.run(kernel, own, config, a, b, c)

    return Competitor(
        name=name,
        run=run,
        ladder=ladder,
        rung=kernel.name,
        number=kernel.number,
        config=None if config is None else dataclasses.asdict(config),
        refusal=kernel.why_not(problem),
    )
