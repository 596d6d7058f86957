"""The comparison's competitors: both ladders, each rung beside its twins, and cuBLAS."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from tritemm.problem import Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel

from .engine import Competitor
from .ladder import Multiply, cublas, of_kernels
from .rows import CUDA, HALF, TRITON
from .twins import adds_to, rivals


def competitors(
    problem: Problem,
    reference: Callable[[str], Multiply],
    cuda: Sequence[Kernel],
    *,
    triton: Sequence[Kernel] = RUNGS,
    only: Collection[str] = (),
    configs: str = "first",
    broken: Mapping[str, str] | None = None,
) -> list[Competitor]:
    """Triton's rungs, `cuda`'s, and cuBLAS; each rung's rivals are `twins.rivals`.

    `broken`: the compiler's messages for the rungs of `cuda` that it can't build.
    """
    found: list[Competitor] = []
    references = cublas(problem, reference)
    halves = tuple(c.name for c in references if c.name == HALF)
    for ladder, kernels, others in ((TRITON, triton, cuda), (CUDA, cuda, triton)):
        known = {kernel.name: kernel for kernel in kernels}
        for entrant in of_kernels(problem, kernels, ladder=ladder, only=only, configs=configs):
            kernel = known[entrant.rung]
            below = adds_to(kernel, kernels)
            entrant = dataclasses.replace(
                entrant,
                adds_to=below and below.name,
                rivals=(*rivals(kernel, kernels, others), *halves),
            )
            if kernel.name in (broken or {}):
                entrant = dataclasses.replace(entrant, run=_fails(broken[kernel.name]))
            found.append(entrant)
    return found + references


def _fails(message: str) -> Multiply:
    def run(a, b, c) -> None:
        raise RuntimeError(message)

    return run
