"""`matmul`, `grouped_mm`, `scaled_mm` and `ladder`: the hand-written kernels as calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from tritemm import plan
from tritemm.problem import BLOCK, Problem, span
from tritemm.problem.config import config_of
from tritemm.rungs import Ladder
from tritemm.runtime import fast_path
from tritemm.spec import Config, Kernel, find

from .rungs import RUNGS


def ladder() -> Ladder:
    """Every kernel that `matmul(kernel=...)` can be asked for, in reading order; prints as a table.

    Each has `name`, `number`, `title`, `header` (what it adds, what it mirrors in Triton, what is
    done by hand, its SASS signs, its needs) and `why_not(problem)`.

    >>> import cuda_reference
    >>> cuda_reference.ladder()[0].name
    'simt_naive'
    """
    return Ladder(RUNGS)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    kernel: str | Kernel,
    out: torch.Tensor | None = None,
    accumulate: torch.dtype | None = None,
    config: Config | Mapping | None = None,
) -> torch.Tensor:
    """a @ b by one hand-written CUDA kernel, on a's device and its current stream.

    The kernel is compiled at its first call, by nvcc, and kept on disk.

    Args:
        a, b: [M, K] and [K, N], float16 or bfloat16, on the same GPU. Which strides each kernel
            reads is its own: all read `b = w.mT` of a [N, K] tensor w (layout NT), and some also
            rows of b (NN); see `ladder()`.
        kernel: a rung of `cuda_reference.ladder()` or its name, which then runs or raises.
        out: where to write the result: [M, N], of a's type and device, rows contiguous, and apart
            from a and b in memory.
        accumulate: float32 (default), or float16 for float16 operands.
        config: one of the rung's `configs`, or a mapping of its fields; the first one if None.
            Tiles are facts of the .cu; ORDER and GROUP_M can be chosen.

    Returns:
        [M, N], of a's type; `out` if it was given. There is no gradient.

    Raises:
        RuntimeError: shapes or devices that don't fit together; operands that require a gradient;
            a CUDA call failed, or the kernel does not compile: the message names the kernel.
        ValueError: the kernel can't run this, with the reason and a rung that can.
        cuda_reference.loader.Unavailable: nvcc or another tool is missing.

    >>> import torch, cuda_reference
    >>> a = torch.randn(300, 64, dtype=torch.float16, device="cuda")  # doctest: +SKIP
    >>> w = torch.randn(200, 64, dtype=torch.float16, device="cuda")  # doctest: +SKIP
    >>> c = cuda_reference.matmul(a, w.mT, kernel="mma_base")  # doctest: +SKIP
    >>> c.shape  # doctest: +SKIP
    torch.Size([300, 200])
    """
    rung = _rung(kernel)
    _check_operands(a, b, out)
    _check_sizes(a.shape, b.shape, out)
    return _product(rung, config, a, b, out, a.dtype, accumulate=accumulate)


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor,
    *,
    kernel: str | Kernel,
    out: torch.Tensor | None = None,
    accumulate: torch.dtype | None = None,
    config: Config | Mapping | None = None,
) -> torch.Tensor:
    """The rows of a, group by group, times the group's matrix of b, in one launch.

    Group g goes from row offs[g - 1] to row offs[g]; it may be empty. The host doesn't read `offs`.
    Rows behind the last group become zeros.

    Args:
        a, b: [M, K] and [G, K, N], as of `matmul`; each group's matrix of b is stored alike.
        offs: [G], int32, where each group ends; they must not decrease.
        kernel, out, accumulate, config: as of `matmul`; `out` is [M, N].

    Returns, Raises: as `matmul`.

    >>> import torch, cuda_reference
    >>> a = torch.randn(300, 64, dtype=torch.float16, device="cuda")  # doctest: +SKIP
    >>> w = torch.randn(2, 200, 64, dtype=torch.float16, device="cuda")  # doctest: +SKIP
    >>> offs = torch.tensor([100, 300], dtype=torch.int32, device="cuda")  # doctest: +SKIP
    >>> c = cuda_reference.grouped_mm(a, w.mT, offs, kernel="mma_async_grouped")  # doctest: +SKIP
    >>> c.shape  # doctest: +SKIP
    torch.Size([300, 200])
    """
    rung = _rung(kernel)
    _check_operands(a, b, out, of_b=3, other="use tritemm.grouped_mm")
    _check_sizes(a.shape, b.shape[1:], out)
    _check_offsets(offs, a, b)
    if len(offs) == 0:
        return _result(a, b, out, a.dtype).zero_()
    options = {"accumulate": accumulate, "groups": "m"}
    return _product(rung, config, a, b, out, a.dtype, offs.contiguous(), **options)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    kernel: str | Kernel,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    config: Config | Mapping | None = None,
) -> torch.Tensor:
    """(a * scale_a) @ (b * scale_b), of 8-bit operands with scales of blocks.

    The tensor core sums 128 elements of K; such sums are scaled and added in fp32.

    Args:
        a, b: [M, K] and [K, N], float8_e4m3fn, as of `matmul`.
        scale_a: float32, [M, K / 128], rounded up: of 128 elements of K of a row of a.
        scale_b: float32, [N / 128, K / 128], rounded up: of 128 x 128 elements of b.mT. Both may
            have any strides, 0 as well.
        kernel, config: as of `matmul`.
        out: where to write the result: [M, N], bfloat16 or float16, rows contiguous.
        out_dtype: the result's type if there is no `out`.

    Returns, Raises: as `matmul`.

    >>> import torch, cuda_reference
    >>> a = torch.randn(300, 256, device="cuda").to(torch.float8_e4m3fn)  # doctest: +SKIP
    >>> w = torch.randn(200, 256, device="cuda").to(torch.float8_e4m3fn)  # doctest: +SKIP
    >>> scales = [torch.rand(n, 2, device="cuda") for n in (300, 2)]  # doctest: +SKIP
    >>> c = cuda_reference.scaled_mm(a, w.mT, *scales, kernel="wgmma_fp8")  # doctest: +SKIP
    >>> c.shape  # doctest: +SKIP
    torch.Size([300, 200])
    """
    rung = _rung(kernel)
    _check_operands(a, b, out, other="call it for each")
    _check_sizes(a.shape, b.shape, out)
    steps, bands = -(-a.shape[1] // BLOCK), -(-b.shape[1] // BLOCK)
    _check_scale("scale_a", scale_a, a.device, (a.shape[0], steps))
    _check_scale("scale_b", scale_b, a.device, (bands, steps))
    scales = scale_a, scale_b
    return _product(rung, config, a, b, out, out_dtype, *scales, scales=(*scales, True))


def _product(
    rung: Kernel, config, a, b, out, dtype: torch.dtype, *more: torch.Tensor, **options
) -> torch.Tensor:
    """The product by the rung, in `out` or a new tensor of this type.

    `more`: what a launch is given after the matrices; `options`: of `Problem.of`.
    """
    c = _result(a, b, out, dtype)
    problem = Problem.of(a, b, c, **options)
    _must_run(rung, problem)
    chosen = _config(rung, problem, config)
    if out is not None:
        _check_memory(a, b, out)
    plan.run(rung, problem, chosen, a, b, c, *more)
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return c


def _result(a, b, out, dtype: torch.dtype) -> torch.Tensor:
    if out is not None:
        return out
    return torch.empty(a.shape[0], b.shape[-1], dtype=dtype, device=a.device)


def _rung(kernel: str | Kernel) -> Kernel:
    if isinstance(kernel, Kernel):
        if kernel not in RUNGS:
            raise ValueError(
                f"{kernel!r} is not of cuda_reference.ladder(); tritemm.matmul runs it"
            )
        return kernel
    if not isinstance(kernel, str):
        raise TypeError(
            "kernel= is the name of a rung of cuda_reference.ladder(), or such a rung, "
            f"not {type(kernel).__name__}"
        )
    return find(kernel, RUNGS)


def _check_operands(
    a, b, out, of_b: int = 2, other: str = "call it for each, or use tritemm.matmul"
) -> None:
    """Errors that don't depend on the kernel: types, devices, gradients; b has `of_b` dimensions.

    `other` is what to do with more of them.
    """
    given = {"a": a, "b": b} | ({} if out is None else {"out": out})
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a Tensor, not {type(tensor).__name__}")
        dims = of_b if name == "b" else 2
        if tensor.dim() != dims or tensor.layout != torch.strided:
            kind = f"{tensor.dim()} dimensions" if tensor.dim() != dims else str(tensor.layout)
            what = "rows by a matrix of each group" if of_b == 3 else "one dense matrix by another"
            raise ValueError(f"{name} has {kind}; a CUDA kernel multiplies {what}: {other}")
        if tensor.device != a.device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, "
                f"but a is on {a.device} and {name} on {tensor.device}"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient, which these kernels don't have: "
                f"{name}.detach(), torch.no_grad() or tritemm.matmul"
            )


def _check_sizes(a: torch.Size, b: torch.Size, out) -> None:
    """Errors where a matrix of the shape `a`, one of `b` and `out` don't go together."""
    if a[1] != b[0]:
        raise RuntimeError(
            f"a {tuple(a)} and b {tuple(b)} cannot be multiplied: "
            f"K is {a[1]} in one and {b[0]} in the other"
        )
    shape = (a[0], b[1])
    if out is not None and out.shape != shape:
        raise ValueError(f"out is {list(out.shape)}; it should be {list(shape)}")


def _check_offsets(offs, a, b) -> None:
    """RuntimeError unless offsets are what a kernel can read, one for each matrix of b."""
    if not isinstance(offs, torch.Tensor):
        raise TypeError(f"offs must be a Tensor, not {type(offs).__name__}")
    if offs.dtype != torch.int32 or offs.device != a.device or offs.shape != b.shape[:1]:
        raise RuntimeError(
            f"offs is {list(offs.shape)} of {offs.dtype} on {offs.device}; for these operands it "
            f"is {list(b.shape[:1])} of torch.int32 on {a.device}"
        )


def _check_scale(name: str, scale, device: torch.device, shape: tuple[int, int]) -> None:
    """RuntimeError unless a scale is one that a kernel can read."""
    if not isinstance(scale, torch.Tensor):
        raise TypeError(f"{name} must be a Tensor, not {type(scale).__name__}")
    if scale.dtype != torch.float32 or scale.device != device or scale.shape != shape:
        raise RuntimeError(
            f"{name} is {list(scale.shape)} of {scale.dtype} on {scale.device}; for these operands "
            f"it is {list(shape)} of torch.float32 on {device}"
        )


def _check_memory(a, b, out) -> None:
    """ValueError where two elements, or an element and an operand, share memory."""
    if out.shape[0] > 1 and out.stride(0) < out.shape[1]:
        stride = out.stride(0)
        raise ValueError(f"rows of out overlap, {stride} elements apart: out.contiguous() has room")
    addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr())
    if fast_path.overlap(addresses, (span(a), span(b), span(out))):
        raise ValueError("out shares memory with a or b; give another, or none")


def _must_run(rung: Kernel, problem: Problem) -> None:
    """ValueError, with the fastest rung that can, if `rung` refuses.

    An empty product is possible in every layout: only its types and device are checked.
    """
    if 0 in (problem.M, problem.N, problem.K):
        problem = _full(problem)
    reason = rung.why_not(problem)
    if reason:
        alike = [k for k in reversed(RUNGS) if k.limits.groups == problem.groups]
        able = next((k for k in alike if k.why_not(problem) is None), None)
        hint = f'; kernel="{able.name}" can run this' if able else ""
        raise ValueError(f'kernel="{rung.name}" cannot run this problem: {reason}{hint}')


def _full(problem: Problem) -> Problem:
    """One tile of the same types on the same device, in the layout that every rung reads."""
    types = (problem.a.dtype, problem.b.dtype, problem.c.dtype)
    a, b, c = (torch.empty(16, 16, dtype=dtype, device="meta") for dtype in types)
    options = {"accumulate": problem.accumulate, "groups": problem.groups}
    if problem.scales:
        scale = torch.empty(16, 1, device="meta")
        options["scales"] = (scale, scale[:1], True)
    return Problem.of(a, b.mT, c, device=problem.device, **options)


def _config(rung: Kernel, problem: Problem, config: Config | Mapping | None) -> Config:
    configs = rung.configs(problem)
    if config is None:
        return configs[0]
    chosen = config_of(config)
    known = [dataclasses.replace(one, GROUP_M=chosen.GROUP_M) for one in configs]
    if chosen not in known:
        raise ValueError(
            f'kernel="{rung.name}" cannot run this config: {chosen!r}; it has '
            f"{', '.join(map(repr, configs))}, with any GROUP_M"
        )
    return chosen
