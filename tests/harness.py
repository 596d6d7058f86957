"""How every kernel test calls a kernel: asymmetric data, poisoned outputs, guard bands."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest
import torch

from cuda_reference import toolkit
from perf.machine import ROOT
from tests.sweep import pairwise
from tritemm import budget, dispatch, plan
from tritemm.dispatch.request import why_not
from tritemm.problem import ACCUMULATE, INTERPRETED, Problem, result_shape
from tritemm.rungs import RUNGS

DEVICE = "cpu" if INTERPRETED else "cuda"
#: Elements of guard before and after an output, and between its rows where it has a pitch.
GUARD = 64


def surroundings(**variables):
    """This process's environment, in which Python finds the repository first, and these."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | variables


def rung_param(kernel, *more, name=None):
    """A parameter set of a rung; one that doesn't run in the interpreter needs a GPU."""
    marks = [pytest.mark.gpu] if kernel.interpreted is None else []
    return pytest.param(kernel, *more, id=name or kernel.name, marks=marks)


def needs_nvcc():
    """What the toolkit has; where there is none the test is skipped, but CI must have one."""
    try:
        return toolkit.nvcc()
    except toolkit.Unavailable as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))


def typed(kernel, dtype):
    """`dtype`, or that of a rung that takes no other."""
    return kernel.limits.dtype or dtype


rungs = pytest.mark.parametrize("kernel", [rung_param(kernel) for kernel in RUNGS])


def sweep(**parameters):
    """Parametrizes a test by `parameters`, each {id: value}, in the rows of `pairwise`."""
    return pytest.mark.parametrize(tuple(parameters), list(_sets(parameters)))


def rung_sweep(**parameters):
    """As `sweep`, by rung too.

    Rungs that need a GPU are a sweep of their own, so that no pair is left to them alone.
    """
    anywhere = {kernel.name: kernel for kernel in RUNGS if kernel.interpreted}
    others = {kernel.name: kernel for kernel in RUNGS if not kernel.interpreted}
    sets = [
        *_sets(parameters | {"kernel": anywhere}),
        *_sets(parameters | {"kernel": others}, pytest.mark.gpu),
    ]
    return pytest.mark.parametrize((*parameters, "kernel"), sets)


def _sets(parameters, *marks):
    for row in pairwise(*map(list, parameters.values())):
        values = [each[name] for each, name in zip(parameters.values(), row, strict=True)]
        yield pytest.param(*values, id="-".join(row), marks=marks)


def ids(values, name=str):
    """{id: value} of values that need no longer names; types lose their "torch."."""
    return {name(value).removeprefix("torch."): value for value in values}


def operand(rows, cols, dtype, layout="N", batch=(), offset=0, aligned=False):
    """Random [*batch, rows, cols]; stored by rows (N), by columns (T) or strided (S).

    `aligned` pads each stored line to a multiple of 16 bytes; strided means every second element
    of a line that is three elements too long. NaN, or a large integer, fills what must not be
    read. `offset` moves the first element that many elements into its storage.
    """
    if layout == "T":
        return operand(cols, rows, dtype, "N", batch, offset, aligned).mT
    step, gap = (2, 3) if layout == "S" else (1, 0)
    pitch = step * cols + gap
    if aligned:
        vector = 16 // dtype.itemsize
        pitch = -(-pitch // vector) * vector
    shape = (*batch, rows, pitch)
    storage = torch.full((offset + math.prod(shape),), _sentinel(dtype), dtype=dtype, device=DEVICE)
    view = storage[offset:].view(shape)[..., : step * cols : step]
    view.copy_(_values(view.shape, dtype))
    return view


def operands(M, N, K, dtype=torch.bfloat16, layout="NN", **options):
    """A and B of a product, each as `operand` makes it."""
    a, b = layout
    return operand(M, K, dtype, a, **options), operand(K, N, dtype, b, **options)


def _values(shape, dtype):
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, shape, dtype=dtype, device=DEVICE)
    # A mean that is not zero makes a missing term visible, a slope makes a swap visible.
    values = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    return (values + torch.linspace(-0.5, 0.7, shape[-1], device=DEVICE)).to(dtype)


def _sentinel(dtype):
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).max - 6


@dataclasses.dataclass
class Guarded:
    """An output filled with poison, inside a storage filled with guard values."""

    tensor: torch.Tensor
    storage: torch.Tensor
    poison: float

    @staticmethod
    def like(shape, dtype, pitch_gap=0, transposed=False):
        *batch, rows, cols = (1, 1, *shape)[-max(len(shape), 2) :]
        if transposed:
            rows, cols = cols, rows
        pitch = cols + pitch_gap
        count = math.prod(batch) * rows * pitch
        poison = _sentinel(dtype)
        storage = torch.full((count + 2 * GUARD,), poison, dtype=dtype, device=DEVICE)
        tensor = storage[GUARD : GUARD + count].view(*batch, rows, pitch)[..., :cols]
        tensor = tensor.mT if transposed else tensor
        return Guarded(tensor.view(shape) if len(shape) < 2 else tensor, storage, poison)

    def assert_untouched_outside(self):
        """Everything but the tensor's own elements still holds its first value."""
        outside = torch.ones_like(self.storage, dtype=torch.bool)
        view = self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
        outside.as_strided(*view).zero_()
        guards = self.storage[outside]
        kept = torch.full_like(guards, self.poison)
        torch.testing.assert_close(guards, kept, rtol=0, atol=0, equal_nan=True)


def assert_right(c, a, b, **options):
    """Each element of c is that of a @ b within its bound; see `budget.check`."""
    verdict = budget.check(c, a, b, **options)
    assert verdict.ok, verdict


def run(
    kernel, a, b, *, precision="ieee", accumulate=None, out_dtype=None, config=None, ending=None,
    **guard,
):  # fmt: skip
    """Run one rung on a, b (equal batch dims) and check every element and every guard.

    `ending`: `EpilogueInputs`, what follows the product; their residual may be "out", which is C.
    On a GPU, where it costs little, also on operands stored alike whose sums are exact. Returns the
    kernel's refusal if it refuses, else None.
    """
    dtype = out_dtype or (torch.int32 if a.dtype == torch.int8 else a.dtype)
    shape = result_shape(a, b, ending.activation if ending else "")
    guarded = Guarded.like(shape, dtype, **guard)
    c = guarded.tensor
    fields = {}
    if ending:
        if isinstance(ending.residual, str):
            ending = ending._replace(residual=c)
        fields = {"residual": ending.residual, **ending.fields}
    problem = Problem.of(a, b, c, precision=precision, accumulate=accumulate, **fields)
    reason = kernel.why_not(problem)
    if reason:
        return reason
    if config is not None and kernel in RUNGS and kernel.interpreted is None:
        assert why_not(kernel, config.view(problem), config) is None  # or it may hang
    config = config or dispatch.best_config(kernel, problem)
    accumulate = accumulate or ACCUMULATE[a.dtype]
    pairs = [(a, b)]
    if not INTERPRETED and a.is_floating_point():
        pairs.append(budget.exact_operands(a, b, accumulate))
    for x, y in pairs:
        c.fill_(guarded.poison)
        wanted = ending
        if ending and ending.residual is c:
            c.copy_(operand(*c.shape[-2:], c.dtype, batch=c.shape[:-2]))
            wanted = ending._replace(residual=c.clone())
        more = (*ending.tensors, *ending.factors) if ending else ()
        plan.run(kernel, problem, config, x, y, c, *more)
        guarded.assert_untouched_outside()
        verdict = budget.check(c, x, y, accumulate=accumulate, precision=precision, ending=wanted)
        assert verdict.ok, f"{kernel.name}, {config}, {problem}: {verdict}"
    return None
