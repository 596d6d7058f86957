"""`tritemm.warmup`: compile before the first real call, which may be inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import torch
from typing_extensions import Unpack

from ..compile.pool import compile_all
from ..dispatch import Choice
from ..problem import INTERPRETED, INTERPRETER, Activation, Layout, stored
from .arguments import Options, check_options
from .explain import explain
from .matmul import matmul

#: From this many kernels on, several processes compile; they take seconds to start.
_FEW = 4
_PROBLEMS = "a list of problems, each (M, N, K), (batch, M, N, K) or two tensors"


def warmup(
    problems: Iterable[Sequence],
    *,
    dtype: torch.dtype = torch.bfloat16,
    layout: Layout = "NT",
    device: torch.device | str | int | None = None,
    activation: Activation | None = None,
    **options: Unpack[Options],
) -> list[Choice]:
    """Compile and load what `matmul` needs for `problems`, so that no later call has to.

    Args:
        problems: shapes (M, N, K) or (batch, M, N, K), or pairs of tensors as `matmul` takes
            them. If one of a pair requires a gradient, the products of the backward pass are
            prepared too. Each problem is multiplied once; for a shape, operands are allocated.
        dtype, layout, device: for shapes. Layout: N, or T for stored transposed, for each operand;
            `torch.nn.functional.linear` uses NT. Device: by default the current one.
        activation, options: see `matmul`.

    Returns:
        What was chosen for each problem. Without a GPU nothing is compiled, and nothing runs.

    >>> import torch, tritemm
    >>> [choice] = tritemm.warmup([(16, 64, 32)], dtype=torch.float16)
    >>> (choice.problem.M, choice.problem.N, choice.problem.K)
    (16, 64, 32)
    """
    check_options(warmup, options)
    if device is None:
        device = "cpu" if INTERPRETED else "cuda"
    if isinstance(problems, torch.Tensor) or not isinstance(problems, Iterable):
        raise TypeError(f"warmup takes {_PROBLEMS}, not {type(problems).__name__}")
    if layout not in get_args(Layout):
        raise ValueError(f"layout={layout!r} is unknown; one of {', '.join(get_args(Layout))}")
    problems = [_checked(one) for one in problems]

    def tensors():
        """Yields one pair at a time; together they might not fit into memory."""
        for one in problems:
            if isinstance(one[0], torch.Tensor):
                yield one
                continue
            *batch, M, N, K = one  # zeros, so that no GPU reads uninitialised memory
            a = stored(torch.zeros, *batch, M, K, layout=layout[0], dtype=dtype, device=device)
            b = stored(torch.zeros, *batch, K, N, layout=layout[1], dtype=dtype, device=device)
            yield a, b

    choices = [explain(a, b, activation=activation, **options) for a, b in tensors()]
    if choices and choices[0].problem.device != INTERPRETER:
        if len({(choice.kernel, choice.config) for choice in choices}) >= _FEW:
            compile_all([(c.kernel.name, c.problem, c.config) for c in choices])
        for a, b in tensors():
            with torch.enable_grad():
                out = matmul(a, b, activation=activation, **options)
                needy = [t for t in (a, b) if t.requires_grad]
                if needy:
                    torch.autograd.grad(out, needy, torch.zeros_like(out))
    return choices


def _checked(problem: Sequence) -> Sequence:
    """ValueError if `problem` is neither a shape nor a pair of tensors."""
    if isinstance(problem, Sequence) and not isinstance(problem, str):
        tensors = [isinstance(part, torch.Tensor) for part in problem]
        numbers = all(type(part) is int and part > 0 for part in problem)
        if tensors == [True, True] or (len(tensors) in (3, 4) and numbers):
            return problem
        problem = [f"{type(part).__name__} {list(part.shape)}" if is_one else part
                   for part, is_one in zip(problem, tensors, strict=True)]  # fmt: skip
    raise ValueError(f"{problem!r} is not a problem; warmup takes {_PROBLEMS}")
