"""`python -m perf conform --bits`: counts products whose bits are those of cuBLAS's.

An output's bits depend on the order of its sum. Where neither side cuts K, and both multiply by
WGMMA, both add 16 terms at a time to one fp32 accumulator, first to last, and tiles of any size
give the same bits. Where one side cuts K into parts, or multiplies by other instructions, the last
bits of most sums differ, and neither is more right.

Operands are normal random numbers. How many parts cuBLAS makes is what its heuristic says, asked
through nvmath-python (`conform_law.planned`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

import tritemm

from .conform import DTYPES, Found, Hunt, Place, cublas, differ, options, ours, size, view
from .conform_law import NVJET, TYPES, planned

#: Log2 of the largest M and N, and of K.
LARGEST, DEEPEST = 12, 13
#: Elements between the beginnings of both operands: no line of one is a line of the other.
AHEAD = 2**20 + 8 * 12345
#: K at each place.
DEPTHS = 50


def drawn(count: int, seed: int) -> list[list[tuple[Place, list[int]]]]:
    """So many problems of 16-bit operands that lie together, most of them aligned."""
    rng, jobs = random.Random(seed), []
    while count > 0:
        M, N = _size(rng, LARGEST), _size(rng, LARGEST)
        place = Place(M, N, rng.choice("NT") + rng.choice("NT"), *rng.choice(TYPES), 0, 0)
        depths = {_size(rng, DEEPEST) for _ in range(min(count, DEPTHS))}
        jobs.append([(place, sorted(depths))])
        count -= len(depths)
    return jobs


def _size(rng: random.Random, log: float) -> int:
    """Three of four are multiples of 8."""
    value = size(rng, log)
    return value if rng.random() < 0.5 else max(8, value // 8 * 8)


class BitsHunt(Hunt):
    """Counts, in `tallies`, products and those with equal bits, by kernels and by who cuts K."""

    def __init__(self, seed: int, device: str):
        self.device = device
        generator = torch.Generator(device).manual_seed(seed)
        room = 2 ** (LARGEST + DEEPEST)
        numbers = torch.randn(room + AHEAD, generator=generator, device=device)
        self.numbers = {dtype: numbers.to(dtype) for dtype in (torch.float16, torch.bfloat16)}

    def operands(self, place: Place, K: int, data: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the same numbers, of which the second begins `AHEAD` further."""
        numbers = self.numbers[DTYPES[place.dtype]]
        a = view(numbers, 0, (place.M, K), place.layout[0], 0)
        return a, view(numbers, AHEAD, (K, place.N), place.layout[1], 0)

    def multiply(self, place: Place, depths: Sequence[int]) -> Found:
        found = Found(len(depths))
        for K in depths:
            a, b = self.operands(place, K, "normal")
            like = torch.empty(place.M, place.N, dtype=options(place)["out_dtype"], device=a.device)
            mine, theirs = (self.product(by, place, a, b, like) for by in (ours, cublas))
            if isinstance(theirs, str):
                found.refused["cublas"] += 1
                continue
            found.products.update(ours=1, cublas=1)
            key = f"{self.parts_of_theirs(a, b, like)} | {parts_of_ours(a, b, place)}"
            same = like.numel() - int(differ(mine, theirs).sum())
            found.tallies[f"{key} | products"] += 1
            found.tallies[f"{key} | equal"] += same == like.numel()
            found.tallies[f"{key} | elements"] += like.numel()
            found.tallies[f"{key} | equal elements"] += same
        return found

    def parts_of_theirs(self, a, b, like: torch.Tensor) -> str:
        try:
            with planned(a, b, torch.empty_like(like)) as (_, plan):
                kernels = "nvjet" if plan.algorithm == NVJET else "others"
                return kernels if plan.parts <= 1 else f"{kernels}, in parts"
        except Exception:  # of nvmath, for what cuBLASLt has no algorithm
            return "unknown"


def parts_of_ours(a, b, place: Place) -> str:
    """The rung that `auto` takes, and whether it cuts K."""
    choice = tritemm.explain(a, b, **options(place))
    cut = choice.config.SPLIT_K > 1 or choice.config.PARTS > 1 or choice.kernel.name == "stream_k"
    return f"{choice.kernel.name}{', in parts' if cut else ''}"
