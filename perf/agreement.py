"""How far a model's results are from the same model in fp32, for tritemm and for torch.

bf16 rounds every layer's result, so no bound of one product holds for a model. The measure is what
torch loses: the two may differ in the order of their sums, but not in what they lose. A model
in fp8 may lose `coarser` times as much.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

#: How much more than torch's an error may be. Roundings of equal size in another order give norms
#: that are some percent apart; a bias that is added after the product has been rounded is a second
#: rounding, which makes it sqrt(2). The norm of one small tensor, and the largest of many errors,
#: scatter more; a fault is of the order of the values, some hundred times torch's errors.
WHOLE, EACH = 1.5, 3.0
#: Of the values' root mean square: as much as one rounding to bf16 may lose, whatever torch loses.
EPSILON = 2.0**-9
#: How far the projection of all gradients, or logits, on the exact ones may be from 1: noise hardly
#: changes it, however large, and a wrong factor does.
GAIN = 0.05


@dataclasses.dataclass(frozen=True)
class Error:
    """Sums of `count` squares, and the largest error; infinite if an error is not finite.

    `along`: the sum of errors times exact values.
    """

    squares: float
    exact: float
    count: int
    along: float
    largest: float

    @staticmethod
    def of(found: torch.Tensor | None, exact: torch.Tensor) -> Error:
        """The error of a tensor; infinite where it is missing."""
        size, squares, along, largest = _sum(exact.square()), math.inf, math.inf, math.inf
        if found is not None and found.shape == exact.shape:
            off = found.float() - exact
            most = off.abs().max()
            if most.isfinite():
                largest, along, squares = float(most), _sum(off * exact), _sum(off.square_())
        return Error(squares, size, exact.numel(), along, largest)

    @property
    def norm(self) -> float:
        """The norm of the error over that of the exact values."""
        return _over(math.sqrt(self.squares), math.sqrt(self.exact))

    @property
    def gain(self) -> float:
        """The projection of the values found on the exact ones, less 1."""
        return _over(self.along, self.exact)

    @property
    def peak(self) -> float:
        """The largest error over the exact values' root mean square."""
        return _over(self.largest, math.sqrt(self.exact / self.count))

    def __add__(self, other: Error) -> Error:
        """The error of both tensors together."""
        names = "squares", "exact", "count", "along"
        sums = (getattr(self, n) + getattr(other, n) for n in names)
        return Error(*sums, max(self.largest, other.largest))


def _sum(t: torch.Tensor) -> float:
    return float(t.sum(dtype=torch.float64))


def _over(value: float, scale: float) -> float:
    """0 if there is nothing."""
    return value / scale if scale else (math.inf if value else 0.0)


Errors = Mapping[str, Error]


def errors(found: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]) -> Errors:
    """The errors of each result, by its name."""
    return {name: Error.of(found.get(name), tensor) for name, tensor in exact.items()}


def groups(found: Errors) -> dict[str, Error]:
    """All gradients together as `gradients`, and every other result."""
    summed: dict[str, Error] = {}
    for name, error in found.items():
        group = "gradients" if name.startswith("gradient") else name
        summed[group] = summed[group] + error if group in summed else error
    return summed


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The verdict on one variant. `worst`: the largest share of what its errors may be.

    `numbers` is what a row keeps: the norm of each group's error over that of its values.
    """

    ok: bool
    worst: float
    numbers: Mapping[str, float]
    message: str

    def __str__(self) -> str:
        return self.message


def judge(own: Errors, torchs: Errors, coarser: float = 1) -> Agreement:
    """`own` errors against those of torch on the same case, or `coarser` times those.

    The loss is one number, whose error may be anything below torch's bound, even 0. It is judged
    like each tensor.
    """
    ours, theirs = groups(own), groups(torchs)
    shares = {
        (name, WHOLE): max(
            error.norm / (WHOLE * coarser * (theirs[name].norm + EPSILON)), abs(error.gain) / GAIN
        )
        for name, error in ours.items()
        if error.count > 1
    }
    for name, error in own.items():
        bounds = torchs[name].norm, torchs[name].peak
        norm, peak = (EACH * coarser * (bound + EPSILON) for bound in bounds)
        shares[name, EACH] = max(error.norm / norm, error.peak / peak)
    at = max(shares, key=lambda at: (math.isnan(shares[at]), shares[at]))
    worst, name = shares[at], at[0]
    numbers = {name: error.norm for name, error in ours.items()}
    if worst <= 1:
        return Agreement(True, worst, numbers, "ok")
    error, there = (ours | own)[name], (theirs | torchs)[name]
    message = (
        f"{name}: {error.norm:.2g} from fp32 (the largest {error.peak:.2g} of the rms), "
        f"torch {there.norm:.2g} ({there.peak:.2g})"
    )
    return Agreement(False, worst, numbers, message)
