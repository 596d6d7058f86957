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
#: without `transpose`. `seed`: round at random.
QUANTIZE = define(
    "quantize(Tensor x, ScalarType dtype, str scaling, bool transpose, Tensor? seed) -> Tensor[]"
)


def _quantize(x, dtype, scaling: str, transpose: bool, seed) -> list[torch.Tensor]:
    device, part = Device.of(x.device), scaling
    if dtype.is_floating_point and device.capability < FP8_CAPABILITY:
        raise RuntimeError(
            "fp8 needs a GPU of compute capability {}.{} or newer; ".format(*FP8_CAPABILITY)
            + f'{device.name} has {device.version}. Take dtype="int8" there'
        )
    if x.numel() and (scaling != "row" or transpose or x.shape[-1] > LONGEST):
        part = {"row": "block", "tensor": "block2d"}.get(scaling, scaling)
    made = _empty(x, dtype, part, transpose)
    if x.numel():
        _launch(x, made, part, seed, find=True, store=part == scaling)
    else:
        for scale in made[1::2]:
            scale.fill_(LEAST.value / TYPES[dtype][0])
    if part != scaling:  # the largest scale of its parts
        made[1::2] = [s.amax(1)[:, None] if scaling == "row" else s.amax() for s in made[1::2]]
        _launch(x, made, scaling, seed, find=False, store=True)
    return made


def _launch(x, made, scaling: str, seed, find: bool, store: bool) -> None:
    """Have a program for each tile of x `find` its scales, `store` its values, or both."""
    if len(made) == 4 and x.stride(0) < x.stride(1):  # loads are wide along rows
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
    numbers = (
        M, K, *x.stride()[-2:], values.stride(-2), values_t.stride(-2), *steps[0], *steps[1],
        *following,
        *TYPES[values.dtype], scaling in ("row", "block"), find, store, draws, len(made) == 4, a, b,
    )  # fmt: skip
    codes, codes_t = values.view(torch.uint8), values_t.view(torch.uint8)
    tensors = x, codes, scale, codes_t, scale_t, seed if draws else x
    # 64 elements per thread, or 32 with as many random numbers; registers for 16 warps on an SM.
    registers = 128 if x.dtype.itemsize == 2 and not draws else None
    options = {"num_warps": min(16, a * b >> (10 if draws else 11)), "maxnreg": registers}
    grid = (triton.cdiv(M, a) * triton.cdiv(K, b) * math.prod(batch),)
    key = numbers, *((t.dtype, t.data_ptr() & 15) for t in tensors)
    named = list(zip(quantize_kernel.arg_names, (*tensors, *numbers), strict=True))
    with torch.cuda.device_of(x):
        binding.launch(key, quantize_kernel, grid, dict(named[6:]), options, dict(named[:6]))


def _fake(x, dtype, scaling: str, transpose: bool, seed) -> list[torch.Tensor]:
    return [
        x.new_empty_strided(shape, strides, dtype=torch.float32 if nth % 2 else dtype)
        for nth, (shape, strides) in enumerate(_layouts(x.shape, scaling, transpose))
    ]


def _empty(x, dtype, scaling: str, transpose: bool) -> list[torch.Tensor]:
    """The tensors of `_fake`, with memory for what stands behind each row."""
    made = []
    for nth, (shape, strides) in enumerate(_layouts(x.shape, scaling, transpose)):
        size = max((n * step for n, step in zip(shape, strides, strict=True)), default=1)
        flat = x.new_empty(size, dtype=torch.float32 if nth % 2 else dtype)
        made.append(flat.as_strided(shape, strides))
    return made


def _layouts(shape, scaling: str, transpose: bool):
    """Shapes and strides of values and scales, and of those of the transpose.

    Rows of values, and of scales of 128 x 128, lie multiples of 16 bytes apart.
    """
    for *batch, M, K in (shape, shape[::-1])[: 1 + transpose]:
        m, k = -(-M // BLOCK), -(-K // BLOCK)
        known = {"tensor": ((), ()), "row": ((M, 1), (1, 1)), "block": ((M, k), (1, M))}
        for size, steps in (
            ((M, K), (-(-K // 16) * 16, 1)),
            known.get(scaling, ((m, k), (-(-k // 4) * 4, 1))),
        ):
            between = (size[0] * steps[0],) if batch else ()
            yield (*batch, *size), (*between, *steps)


implement_whole(QUANTIZE, _quantize, _fake)
