"""A kind of call and its launches: `matrices` makes the kernel's inputs, `run` launches kernels."""

from __future__ import annotations

import dataclasses
import functools

import torch

from .. import dispatch
from ..dtypes import resolve
from ..kernels import residues
from ..kernels.pack import pack
from ..problem import NOTHING, EpilogueInputs, Problem
from ..problem.config import Config
from ..rungs import find
from ..runtime import fast_path
from ..runtime.binding import Call
from ..spec import Kernel


def matrices(
    a, b, out, precision: str | None, accumulate: torch.dtype | None,
    then: EpilogueInputs = NOTHING, groups: str = "", scales: tuple | None = None,
    in_blocks: bool = False,
):  # fmt: skip
    """The problem that computes `out` = a @ b, and the views of a, b, out that it describes.

    The tensors of `then` follow: the bias, the residual. Batch dimensions that only `a` has become
    rows if its memory allows it, so that a stack of matrices times one matrix is one large product.
    Operands are copied only if more than two batch dimensions would remain. `groups`, `scales` and
    `in_blocks`: see `Problem.of`.
    """
    precision = resolve(precision, a.dtype)
    bias, residual, *_ = then
    if out.dim() > 2 and not groups:
        batch = out.shape[:-2]
        a = a.expand(*batch, *a.shape[-2:])
        b = b.expand(*batch, *b.shape[-2:])
        if not (then.symmetric or scales):  # each matrix has its own triangle, or scales
            a, b, out, residual = _fold(a, b, out, residual)
    for copies in ((), (0,), (1,), (0, 1), (0, 1, 3), (0, 1, 2, 3)):
        a_, b_, out_, residual_ = (
            t.contiguous() if i in copies and t is not None else t
            for i, t in enumerate((a, b, out, residual))
        )
        try:
            problem = Problem.of(
                a_, b_, out_, precision=precision, accumulate=accumulate, residual=residual_,
                groups=groups, scales=scales, in_blocks=in_blocks, **then.fields,
            )  # fmt: skip
        except ValueError:
            continue
        return problem, a_, b_, out_, *(t for t in (bias, residual_) if t is not None)
    raise AssertionError("contiguous operands always merge")


def _fold(a, b, out, residual):
    """Turn trailing batch dimensions that `b` lacks into rows."""
    rowed = [t for t in (a, out, residual) if t is not None]
    while out.dim() > 2 and (b.stride(-3) == 0 or out.shape[-3] == 1):
        rows = out.shape[-2]
        # The stride of a dimension of one element means nothing.
        apart = any(t.stride(-3) != t.stride(-2) * rows for t in rowed)
        if apart and 1 not in (rows, out.shape[-3]):
            break
        rowed = [t.flatten(-3, -2) for t in rowed]
        out = rowed[1]
        b = b.select(-3, 0)
    a, out, *residual = rowed
    return a, b, out, *(residual or [None])


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c, *more) -> list[Call | None]:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream.

    `problem` describes a, b and c; `more` is the rest of its arguments, in the order of
    `Problem.arguments`. Returns what repeats each launch, in order, None for a launch that can't be
    repeated; an empty list if there is nothing to multiply.
    """
    if is_trivial(problem.K, c):
        return []
    calls: list[Call | None] = []
    with torch.cuda.device_of(c):
        if problem.by_residues and problem.is_split(config.PACK):
            launch = functools.partial(kernel.launch, config.view(problem), config)
            raised, calls = residues.multiply(problem, a, b, c, launch)
            return [*calls, launch_guarded(problem, a, b, c, raised)]
        original, flag = (a, b, c, *more), None
        if config.PACK:
            a, b, flag, call = pack(problem, config.PACK, a, b)
            calls.append(call)
            if flag is not None:
                more = *more, flag
        if config.SWAP:
            a, b, c = b.mT, a.mT, c.mT
            turned = (t.mT if isinstance(t, torch.Tensor) and t.dim() > 1 else t for t in more)
            more = swapped(problem, tuple(turned))
        calls.append(kernel.launch(config.view(problem), config, a, b, c, *more))
        if flag is not None:
            calls.append(launch_guarded(problem, *original, flag))
    return calls


def launch_guarded(problem: Problem, a, b, c, *more) -> Call | None:
    """Multiply again by FFMA if the flag, the last of `more`, is set; the host doesn't read it."""
    problem = dataclasses.replace(problem, precision="ieee", guarded=True)
    rung = find("pipelined")
    return rung.launch(problem, rung.configs(problem)[0], a, b, c, *more)


def swapped(problem: Problem, more: tuple) -> tuple:
    """`problem`'s further arguments, reordered for b.T, a.T and c.T: the scales change places."""
    if problem.scales is None:
        return more
    first = problem.arguments.index("scale_a_ptr")
    a, b = more[first : first + 2]
    return *more[:first], b, a, *more[first + 2 :]


def is_trivial(terms: int, c: torch.Tensor) -> bool:
    """Whether there is nothing to multiply; if so, fills `c`: sums without terms are zero."""
    if terms == 0:
        c.zero_()
    return terms == 0 or c.numel() == 0


def forget() -> None:
    """Discard all plans and choices, because the tuning results have changed."""
    dispatch.forget()
    fast_path.KNOWN.clear()
