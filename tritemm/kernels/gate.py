"""A gated activation as one kernel, and its gradient as one; not a rung, but a step after one.

x [R, 2 N] holds the gate's columns, then the columns that they multiply: activation(gate) * up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..problem import GATED
from ..runtime import binding
from .device.tile import convert

#: The most columns of one program, and its warps.
BLOCK, WARPS = 1024, 4


@triton.jit
def gate_kernel(
    x, grad, out, N, ACTIVATION: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    """Columns of a row of `out`, [R, N]; with `grad` [R, N], of the gradient of x, [R, 2 N]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < N
    x += row * 2 * N + cols
    WIDE: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    gate = tl.load(x, mask=inside, other=0).to(WIDE)
    up = tl.load(x + N, mask=inside, other=0).to(WIDE)
    if ACTIVATION == "silu":
        share = 1 / (1 + tl.exp(-gate))  # of the gate, that it lets through
        slope = share * (1 + gate * (1 - share))
    else:
        share = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
        slope = share + gate * tl.exp(-0.5 * gate * gate) * 0.3989422804014327
    dtype = out.dtype.element_ty
    if GRADIENT:
        out += row * 2 * N + cols
        factor = tl.load(grad + row * N + cols, mask=inside, other=0).to(WIDE)
        tl.store(out, convert(factor * up * slope, dtype), mask=inside)
        tl.store(out + N, convert(factor * gate * share, dtype), mask=inside)
    else:
        tl.store(out + row * N + cols, convert(gate * share * up, dtype), mask=inside)


def gated(x, activation: str, out, grad=None) -> None:
    """Write activation(gate) * up, or with `grad` the gradient of x; all are contiguous."""
    rows, columns = x.numel() // x.shape[-1], x.shape[-1] // 2
    block = min(BLOCK, triton.next_power_of_2(columns))
    values = {"N": columns, "ACTIVATION": GATED[activation], "GRADIENT": grad is not None}
    values |= {"BLOCK": block}
    tensors = {"x": x, "grad": x if grad is None else grad, "out": out}
    grid = rows, triton.cdiv(columns, block)
    binding.launch_alike(gate_kernel, grid, values, tensors, WARPS)
