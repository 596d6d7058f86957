"""`python -m perf conform --law`: tests when exactly cuBLAS loses the end of K.

cuBLAS cuts K of a 16-bit product into s parts where its heuristic says so. K has q = K // 64 steps
and a tail of t = K % 64 terms. Algorithm 66 drops the tail if s divides q and t < s: then K // s,
rounded down, is a whole number of steps, and no part is told of the rest. This law was published
for an H100 in facebookexperimental/triton#2767. Here the heuristic is asked about each problem, the
law predicts the result, and a product shows what cuBLAS adds up. A is zero except in the tail,
where it is one, as all of B is: so each element is t, or 0 if the tail is lost, in every type.

Each is multiplied by cuBLASLt with the very algorithm that the heuristic names, through
nvmath-python, and by `torch.mm`, which asks for itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import random
from collections.abc import Iterator, Sequence

import torch

from .conform import (
    DEEPEST,
    DEPTHS,
    DTYPES,
    LARGEST,
    POISON,
    Found,
    Hunt,
    Place,
    cublas,
    size,
    view,
)

#: Terms of one step of K in the kernels that lose a tail, and cuBLASLt's number of these kernels,
#: whose names begin with nvjet.
STEP, NVJET = 64, 66
#: Bytes of workspace that torch gives cuBLAS on compute capability 9.0.
WORKSPACE = 32 * 2**20
TYPES = (("fp16", "fp16"), ("fp16", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"))
#: Longest tail of most problems: one that is no longer than the number of parts can be lost.
TAIL = 16


@dataclasses.dataclass(frozen=True)
class Plan:
    """What cuBLASLt's heuristic takes for a problem."""

    algorithm: int
    parts: int

    def loses(self, K: int) -> bool:
        """What the law says."""
        steps, tail = divmod(K, STEP)
        return self.algorithm == NVJET and 0 < tail < self.parts and steps % self.parts == 0


@contextlib.contextmanager
def planned(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Iterator[tuple]:
    """nvmath's product of the transposed operands, as torch hands them on, and its algorithm."""
    advanced = importlib.import_module("nvmath.linalg.advanced")
    kind = advanced.MatmulComputeType.COMPUTE_32F
    options = {"compute_type": kind, "inplace": True, "memory_limit": WORKSPACE}
    with advanced.Matmul(b.mT, a.mT, c=out.mT, beta=0.0, options=options) as product:
        (algorithm,) = product.plan(preferences={"limit": 1})
        yield product, Plan(algorithm.algorithm_id, algorithm.split_k)


def drawn(count: int, seed: int) -> list[list[tuple[Place, list[int]]]]:
    """So many problems whose M or N is a multiple of 8, and which have a tail."""
    rng, jobs = random.Random(seed), []
    while count > 0:
        M, N = size(rng, LARGEST), max(8, size(rng, LARGEST) // 8 * 8)
        sizes = (M, N) if rng.random() < 0.5 else (N, M)
        place = Place(*sizes, rng.choice("NT") + rng.choice("NT"), *rng.choice(TYPES), 0, 0)
        depths = {_depth(rng) for _ in range(min(count, DEPTHS // 4))}
        jobs.append([(place, sorted(depths))])
        count -= len(depths)
    return jobs


def _depth(rng: random.Random) -> int:
    tail = rng.randint(1, TAIL) if rng.random() < 0.8 else rng.randint(1, STEP - 1)
    return STEP * rng.randint(1, 2**DEEPEST // STEP - 1) + tail


class LawHunt(Hunt):
    """Counts, in `tallies`, what the law said of how many products, and what came out."""

    def operands(self, place: Place, K: int, data: str) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = DTYPES[place.dtype]
        a = view(self.written[dtype], 0, (place.M, K), place.layout[0], 0).zero_()
        a[:, K - K % STEP :] = 1
        return a, view(self.ones[dtype], 0, (K, place.N), place.layout[1], 0)

    def exact(self, place: Place, K: int, data: str) -> torch.Tensor:
        shape, dtype = (place.M, place.N), DTYPES[place.output]
        return torch.full(shape, K % STEP, dtype=dtype, device=self.device)

    def multiply(self, place: Place, depths: Sequence[int]) -> Found:
        found = Found(len(depths))
        for K in depths:
            a, b = self.operands(place, K, "tail")
            want = self.exact(place, K, "tail")
            try:
                plan, got = self.by_plan(a, b, want)
            except Exception as error:  # of nvmath, for what cuBLASLt has no algorithm
                found.refused["cublaslt"] += 1
                found.words[f"cublaslt: {str(error).partition('.')[0]}"] += 1
                continue
            said = "lost" if plan.loses(K) else "kept"
            found.tallies[f"cublaslt | {said} | {outcome(got, want)}"] += 1
            other = self.product(cublas, place, a, b, want)
            if isinstance(other, torch.Tensor):
                found.tallies[f"torch.mm | {said} | {outcome(other, want)}"] += 1
        return found

    def by_plan(self, a, b, want: torch.Tensor) -> tuple[Plan, torch.Tensor]:
        out = torch.full_like(want, POISON)
        with planned(a, b, out) as (product, plan):
            product.execute()
        return plan, out


def outcome(got: torch.Tensor, want: torch.Tensor) -> str:
    """kept, lost, or wrong in another way."""
    if torch.equal(got, want):
        return "kept"
    return "otherwise wrong" if got.any() else "lost"


@functools.cache
def unable() -> str | None:
    """Why there is no heuristic to ask."""
    try:
        importlib.import_module("nvmath.linalg.advanced")
    except ImportError as error:
        return (
            f"asks cuBLASLt through nvmath-python, which isn't here ({error}): pip install .[peers]"
        )
    return None
