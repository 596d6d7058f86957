"""The operator that quantises a matrix to 8 bits, and its transpose with it."""

from __future__ import annotations

import math

import torch
import triton

from ..arch.sm80 import FP8_CAPABILITY
from ..kernels.quantize import LEAST, quantize_kernel
from ..problem import Device
from ..problem.scales import BLOCK
from ..runtime import binding
from ..runtime.operators import define, implement_whole

#: Type -> its largest number, and bits of mantissa; 0: an integer.
TYPES = {torch.float8_e4m3fn: (448.0, 3), torch.float8_e5m2: (57344.0, 2), torch.int8: (127.0, 0)}
#: Elements of a row, at most, that one program takes whole; and of short rows together.
LONGEST, TOGETHER = 32768, 4096
#: Values and scales of a matrix x, and if `transpose` those of x.mT; or of several, in "block2d"
#: without `transpose`. `seed`: round at random. Where `offs` cuts the rows, in "block" with
#: `transpose`, groups begin at multiples of 128 of x.mT's columns; where they end comes fifth.
QUANTIZE = define(
    "quantize(Tensor x, ScalarType dtype, str scaling, bool transpose, Tensor? seed, "
    "Tensor? offs=None) -> Tensor[]"
)


def _quantize(x, dtype, scaling: str, transpose: bool, seed, offs=None) -> list[torch.Tensor]:
    device, part = Device.of(x.device), scaling
    if dtype.is_floating_point and device.capability < FP8_CAPABILITY:
        raise RuntimeError(
            "fp8 needs a GPU of compute capability {}.{} or newer; ".format(*FP8_CAPABILITY)
            + f'{device.name} has {device.version}. Take dtype="int8" there'
        )
    if x.numel() and (scaling != "row" or transpose or x.shape[-1] > LONGEST):
        part = {"row": "block", "tensor": "block2d"}.get(scaling, scaling)
    made, groups = _empty(x, dtype, part, transpose, offs), None
    if offs is not None:  # what lies behind the last is one more
        rows = offs.new_full((1,), len(x))
        cut = torch.cat([offs.clamp(0, len(x)).cummax(0).values, rows])
        blocks = (cut.diff(prepend=rows - len(x)) + (BLOCK - 1)) // BLOCK
        groups = cut, blocks.cumsum(0, dtype=torch.int32) * BLOCK
    if x.numel():
        _launch(x, made, part, seed, True, part == scaling, groups)
    else:
        for scale in made[1::2]:
            scale.fill_(LEAST.value / TYPES[dtype][0])
    if part != scaling:  # the largest scale of its parts
        made[1::2] = [s.amax(1)[:, None] if scaling == "row" else s.amax() for s in made[1::2]]
        _launch(x, made, scaling, seed, find=False, store=True)
    return made if groups is None else [*made, groups[1][:-1]]


def _launch(x, made, scaling: str, seed, find: bool, store: bool, groups=None) -> None:
    """Have a program for each tile of x `find` its scales, `store` its values, or both.

    `groups`: where they end in x, and in its transpose.
    """
    if len(made) == 4 and groups is None and x.stride(0) < x.stride(1):  # loads are wide along rows
        x, made = x.mT, made[2:] + made[:2]
    (*batch, M, K), a, b, draws = x.shape, BLOCK, BLOCK, seed is not None
    if scaling == "row" and find:
        b = triton.next_power_of_2(max(K, 16))
        a = max(1, TOGETHER // b)
    values, scale, values_t, scale_t = made[:2] + made[-2:]
    if batch:
        steps = [scale.stride()[1:]] * 2
    else:
        steps = [(*s.squeeze(-1).stride(), 0, 0)[:2] for s in (scale, scale_t)]  # 0: one for all
    following = [t.stride(0) if batch else 0 for t in (x, values, scale)]
    offs, ends = groups or (x, x)
    count = 0 if groups is None else len(offs)
    numbers = (
        count, M, K, *x.stride()[-2:], values.stride(-2), values_t.stride(-2), *steps[0], *steps[1],
        *following, *TYPES[values.dtype], scaling in ("row", "block"), find, store, draws,
        len(made) == 4, triton.next_power_of_2(count) if count else 0, a, b,
    )  # fmt: skip
    codes, codes_t = values.view(torch.uint8), values_t.view(torch.uint8)
    tensors = x, codes, scale, codes_t, scale_t, seed if draws else x, offs, ends
    # 64 elements per thread, or 32 with as many random numbers; registers for 16 warps on an SM.
    registers = 128 if x.dtype.itemsize == 2 and not draws else None
    options = {"num_warps": min(16, a * b >> (10 if draws else 11)), "maxnreg": registers}
    rows = M if groups is None else values_t.shape[1]
    grid = (triton.cdiv(rows, a) * triton.cdiv(K, b) * math.prod(batch),)
    key = numbers, *((t.dtype, t.data_ptr() & 15) for t in tensors)
    named = list(zip(quantize_kernel.arg_names, (*tensors, *numbers), strict=True))
    with torch.cuda.device_of(x):
        binding.launch(key, quantize_kernel, grid, dict(named[8:]), options, dict(named[:8]))


def _fake(x, dtype, scaling: str, transpose: bool, seed, offs=None) -> list[torch.Tensor]:
    made = [
        x.new_empty_strided(shape, strides, dtype=torch.float32 if nth % 2 else dtype)
        for nth, (shape, strides) in enumerate(_layouts(x.shape, scaling, transpose, offs))
    ]
    return made if offs is None else [*made, torch.empty_like(offs)]


def _empty(x, dtype, scaling: str, transpose: bool, offs) -> list[torch.Tensor]:
    """The tensors of `_fake`, with memory for what stands behind each row."""
    made = []
    for nth, (shape, strides) in enumerate(_layouts(x.shape, scaling, transpose, offs)):
        size = max((n * step for n, step in zip(shape, strides, strict=True)), default=1)
        flat = x.new_empty(size, dtype=torch.float32 if nth % 2 else dtype)
        made.append(flat.as_strided(shape, strides))
    return made


def _layouts(shape, scaling: str, transpose: bool, offs):
    """Shapes and strides of values and scales, and of those of the transpose.

    Rows of values, and of scales of 128 x 128, lie multiples of 16 bytes apart. The transpose of
    groups has room for as many columns as whole blocks may take.
    """
    turned = shape[::-1]
    if offs is not None:
        most = shape[0] + (BLOCK - 1) * (offs.shape[0] + 1)
        turned = shape[1], -(-most // BLOCK) * BLOCK
    for *batch, M, K in (shape, turned)[: 1 + transpose]:
        m, k = -(-M // BLOCK), -(-K // BLOCK)
        known = {"tensor": ((), ()), "row": ((M, 1), (1, 1)), "block": ((M, k), (1, M))}
        for size, steps in (
            ((M, K), (-(-K // 16) * 16, 1)),
            known.get(scaling, ((m, k), (-(-k // 4) * 4, 1))),
        ):
            between = (size[0] * steps[0],) if batch else ()
            yield (*batch, *size), (*between, *steps)


implement_whole(QUANTIZE, _quantize, _fake)
