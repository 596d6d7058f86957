"""One product of groups: rows, columns or K are cut where a tensor on the device says.

What is cut follows from the dimensions of the operands. Where that is columns, what is launched is
the transposed product, whose rows are cut.
"""

from __future__ import annotations

from typing import Any

import torch

from ..dtypes import REAL, resolve
from ..problem import ACCUMULATE, NOTHING, EpilogueInputs, Problem, after, meet
from ..problem import result_shape as batch_shape
from ..runtime import fast_path
from ..runtime.torch_private import untraced
from .kinds import Plan

#: By the dimensions of the operands: what is cut into groups.
FORMS = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}


def form_of(a, b) -> str:
    return FORMS[a.dim(), b.dim()]


def result_shape(a, b, groups: int, activation: str = "") -> tuple[int, ...]:
    """[groups, M, N] where K is cut, else [M, N]; half as many columns of pairs."""
    matrix = batch_shape(a, b, activation)[-2:]
    return (groups, *matrix) if form_of(a, b) == "k" else matrix


@untraced
def product(a, b, offs, then: EpilogueInputs, options: tuple, out=None) -> torch.Tensor:
    """activation(alpha * a @ b + bias), group by group; it is `out` if that is given.

    `options`: as of a `kinds.Plan`. Rows and columns behind the last group are zeros. Neither
    checked nor recorded by autograd; a write to `out` counts. Raises what `dispatch.choose` raises.
    """
    ungrouped, addresses = fast_path.kind_of(a, b, out, options, then)
    key = "groups", ungrouped, offs.shape
    kind: Any = fast_path.KNOWN.get(key)
    if out is not None:
        fast_path.check_writable(out)
        if any(meet(t, out) for t in (a, b, offs, *then.tensors)):
            return out.copy_(product(a, b, offs, then, options))
    if kind is not None and kind.launches is not None and fast_path.AVAILABLE:
        addresses = *addresses[:3], offs.data_ptr(), *addresses[3:]
        made = fast_path.multiply(kind, addresses, out)
        if made is not None:
            return made
    c = out
    if c is None:
        shape = result_shape(a, b, len(offs), then.activation)
        c = torch.empty(shape, dtype=options[-1], device=a.device)
    if form_of(a, b) == "n":
        product(b.mT, a.mT, offs, then, options, c.mT)
    elif then is not NOTHING and a.dtype not in REAL:
        c.copy_(_in_parts(a, b, offs, then, options))
    elif len(offs) == 0:
        c.zero_()
    elif c.numel():
        if kind is None:
            _, precision, accumulate, _ = options
            problem = Problem.of(
                a, b, c, accumulate=accumulate, precision=resolve(precision, a.dtype),
                groups=form_of(a, b), **then.fields,
            )  # fmt: skip
            kind = Plan(a, b, c, options, problem)
        if kind.apart:
            after(product(a, b, offs, then.before(), options), then.activation, None, 1.0, c)
        else:
            kind(a, b, c, then, (a, b, c, *[t.flatten() for t in then.tensors]), offs)
        fast_path.KNOWN[key] = kind
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return c


def _in_parts(a, b, offs, then: EpilogueInputs, options: tuple) -> torch.Tensor:
    """What follows by torch, where kernels have no epilogue: of fp64, and of integers."""
    made = product(a, b, offs, NOTHING, (*options[:3], ACCUMULATE[a.dtype]))
    if then.bias is not None and made.dim() == 3:
        then = then._replace(bias=then.bias.unsqueeze(1))
    elif then.bias is not None:
        rows = torch.arange(len(a), dtype=torch.int32, device=a.device)
        group = torch.searchsorted(offs, rows, right=True).clamp_(max=len(offs))
        rest = then.bias.new_zeros(1, then.bias.shape[1])
        then = then._replace(bias=torch.cat([then.bias, rest])[group])
    return then.of(made, options[-1])
