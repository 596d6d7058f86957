"""Operands by which the accuracy of a multiplication is graded.

Errors are counted in parts of sum |a| |b|, so operands matter as far as their sizes differ and as
signs cancel: uniform and normal numbers; lines, or places along K, on scales of their own; numbers
on scales of their own, (rand - 1/2) exp(phi randn), as in the papers on the Ozaki scheme (K. Ozaki,
Y. Uchino, T. Imamura, "Ozaki Scheme II", arXiv 2504.08009); sums that cancel; subnormal numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch

#: Decimal exponents of the smallest and the largest scale.
FARTHEST = {torch.float32: 30, torch.float64: 100}
#: Times normal numbers: subnormal ones of fp32, and what brings their products back.
TINY, BACK = 2.0**-130, 2.0**100


@dataclasses.dataclass(frozen=True)
class Draw:
    """Random numbers, in fp64, for matrices of `dtype` that are [M, K] and [K, N]."""

    M: int
    N: int
    K: int
    dtype: torch.dtype
    random: torch.Generator

    def uniform(self, *shape: int) -> torch.Tensor:
        how = {"generator": self.random, "device": self.random.device}
        return torch.rand(shape, dtype=torch.float64, **how)

    def normal(self, *shape: int) -> torch.Tensor:
        how = {"generator": self.random, "device": self.random.device}
        return torch.randn(shape, dtype=torch.float64, **how)

    def scales(self, count: int) -> torch.Tensor:
        """From the smallest to the largest, each times as much as the one before."""
        far = FARTHEST[self.dtype]
        device = self.random.device
        return torch.logspace(-far, far, count, dtype=torch.float64, device=device)


Pair = tuple[torch.Tensor, torch.Tensor]


def _uniform(draw: Draw) -> Pair:
    return draw.uniform(draw.M, draw.K), draw.uniform(draw.K, draw.N)


def _normal(draw: Draw) -> Pair:
    return draw.normal(draw.M, draw.K), draw.normal(draw.K, draw.N)


def _rows(draw: Draw) -> Pair:
    a, b = _normal(draw)
    return a * draw.scales(draw.M)[:, None], b


def _columns(draw: Draw) -> Pair:
    a, b = _normal(draw)
    return a, b * draw.scales(draw.N)


def _along_k(draw: Draw) -> Pair:
    """Columns of A are large or small at random, and rows of B where those are not."""
    a, b = _normal(draw)
    scale = 10.0 ** (FARTHEST[draw.dtype] * draw.normal(draw.K).sign())
    return a * scale, b / scale[:, None]


def _graded(phi: float, draw: Draw) -> Pair:
    a, b = _uniform(draw)
    a = (a - 0.5) * torch.exp(phi * draw.normal(draw.M, draw.K))
    return a, (b - 0.5) * torch.exp(phi * draw.normal(draw.K, draw.N))


def _cancelling(draw: Draw) -> Pair:
    """Halves of K whose products are opposite, but for a part in sqrt(eps) of each."""
    half = -(-draw.K // 2)
    a, b = draw.normal(draw.M, half), draw.normal(half, draw.N)
    # As they will be rounded, so that nothing but the small part is left.
    a, b = a.to(draw.dtype).double(), b.to(draw.dtype).double()
    small = torch.finfo(draw.dtype).eps ** 0.5 * draw.normal(half, draw.N)
    return torch.cat((a, a), 1)[:, : draw.K], torch.cat((b, -b * (1 + small)))[: draw.K]


def _subnormal(draw: Draw) -> Pair:
    a, b = _normal(draw)
    return a * TINY, b * BACK


#: Operands by name. What is subnormal is so in fp32.
DATA: dict[str, Callable[[Draw], Pair]] = {
    "uniform": _uniform,
    "normal": _normal,
    "rows": _rows,
    "columns": _columns,
    "along-k": _along_k,
    **{f"phi{phi}": functools.partial(_graded, float(phi)) for phi in (1, 2, 4)},
    "cancelling": _cancelling,
    "subnormal": _subnormal,
}
#: What each is, in a few words.
DESCRIBED = {
    "uniform": "uniform in (0, 1)",
    "normal": "normal",
    "rows": "normal, rows of A from 1e-{far} to 1e{far}",
    "columns": "normal, columns of B from 1e-{far} to 1e{far}",
    "along-k": "normal, 1e{far} and 1e-{far} along K, inverse in B",
    **{f"phi{phi}": f"(rand - 1/2) exp({phi} randn)" for phi in (1, 2, 4)},
    "cancelling": "normal, halves of K that cancel",
    "subnormal": "normal, A subnormal",
}


def of(dtype: torch.dtype) -> list[str]:
    """The names of what `dtype` is graded by."""
    return [name for name in DATA if name != "subnormal" or dtype == torch.float32]


def described(name: str, dtype: torch.dtype) -> str:
    return DESCRIBED[name].format(far=FARTHEST[dtype])


def operands(
    name: str, size: tuple[int, int, int], dtype: torch.dtype, seed: int, device: str
) -> Pair:
    """A [M, K] and B [K, N], both contiguous; the same for a name and a seed."""
    draw = Draw(*size, dtype, torch.Generator(device).manual_seed(seed))
    a, b = DATA[name](draw)
    return a.to(dtype), b.to(dtype)
