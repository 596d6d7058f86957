"""The operator that quantises a matrix to 8 bits, and its transpose with it."""

from __future__ import annotations

import functools
import math

import torch
import triton

from ..arch.sm80 import FP8_CAPABILITY
from ..kernels.quantize import LEAST, quantize_kernel
from ..problem import Device
from ..problem.scales import BLOCK
from ..runtime import binding, fast_path
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import untraced

#: Type -> its largest number, and its mantissa bits; 0 for an integer.
TYPES = {torch.float8_e4m3fn: (448.0, 3), torch.float8_e5m2: (57344.0, 2), torch.int8: (127.0, 0)}
#: The most elements of a row that one program takes whole; and of several short rows.
LONGEST, TOGETHER = 32768, 4096
#: Values and scales of a matrix x and, if `turned` is given, of x.mT in that scaling: x's own or,
#: for "block", "block2d". x may be several matrices in "block2d" without `turned`. `seed`: round at
#: random. With `offs`, "block" and `turned`, each group's columns of x.mT begin at a multiple of
#: 128, and where they end comes fifth.
QUANTIZE = define(
    "quantize(Tensor x, ScalarType dtype, str scaling, str? turned=None, Tensor? seed=None, "
    "Tensor? offs=None) -> Tensor[]"
)


def quantized(x, dtype, scaling: str, turned=None, seed=None, offs=None) -> list[torch.Tensor]:
    """The operator's results, without torch's dispatcher if nobody watches."""
    watched = not fast_path.unwatched(x, x, (seed, offs))
    return (QUANTIZE if watched else _quantize)(x, dtype, scaling, turned, seed, offs)


@untraced
def _quantize(x, dtype, scaling: str, turned=None, seed=None, offs=None) -> list[torch.Tensor]:
    device, part = Device.of(x.device), scaling
    if dtype.is_floating_point and device.capability < FP8_CAPABILITY:
        raise RuntimeError(
            "fp8 needs a GPU of compute capability {}.{} or newer; ".format(*FP8_CAPABILITY)
            + f'{device.name} has {device.version}. Use dtype="int8" there'
        )
    if x.numel() and (scaling != "row" or turned or x.shape[-1] > LONGEST):
        part = {"row": "block", "tensor": "block2d"}.get(scaling, scaling)
    parts = (part, part if turned == scaling else turned)[: 1 + bool(turned)]
    made, groups = _empty(x, dtype, parts, offs), None
    if offs is not None:  # the rest after the last counts as one more
        rows = offs.new_full((1,), len(x))
        cut = torch.cat([offs.clamp(0, len(x)).cummax(0).values, rows])
        blocks = (cut.diff(prepend=rows - len(x)) + (BLOCK - 1)) // BLOCK
        groups = cut, blocks.cumsum(0, dtype=torch.int32) * BLOCK
    if x.numel():
        _launch(x, made, parts, seed, True, part == scaling, groups)
    else:
        for scale in made[1::2]:
            scale.fill_(LEAST.value / TYPES[dtype][0])
    if part != scaling:  # the largest of its parts' scales
        made[1::2] = [s.amax(1)[:, None] if scaling == "row" else s.amax() for s in made[1::2]]
        _launch(x, made, (scaling,) * len(parts), seed, find=False, store=True)
    return made if groups is None else [*made, groups[1][:-1]]


def _launch(x, made, scalings, seed, find: bool, store: bool, groups=None) -> None:
    """Launch a program per tile of x to `find` its scales, `store` its values, or both.

    `scalings`: of x, and of x.mT if it is made. `groups`: their ends in x, and in x.mT.
    """
    if len(made) == 4 and groups is None and x.stride(0) < x.stride(1):  # loads are wide along rows
        x, made, scalings = x.mT, made[2:] + made[:2], scalings[::-1]
    layouts = tuple([(t.dtype, t.shape, t.stride()) for t in (x, *made)])
    count = 0 if groups is None else len(groups[0])
    asked = layouts, scalings, find, store, seed is not None, count
    seed, (offs, ends) = x if seed is None else seed, groups or (x, x)
    tensors = x, *made[:2], *made[-2:], seed, offs, ends
    there = dict(zip(quantize_kernel.arg_names, tensors, strict=False))
    key = asked, seed.dtype, offs.dtype, *(t.data_ptr() & 15 for t in tensors)
    with torch.cuda.device_of(x):
        binding.launch(key, quantize_kernel, *_launch_of(*asked), there)


@functools.lru_cache(maxsize=4096)
def _launch_of(layouts, scalings, find, store, draws, count) -> tuple[tuple[int], dict, dict]:
    """A launch's grid, the arguments that are no tensors, and the options."""
    (source, (*batch, M, K), strides), (dtype, _, value_strides), scale, *more = layouts
    (_, shape_t, value_strides_t), scale_t = more or (layouts[1], scale)
    # For a dimension of one element the stride is passed as 0: as 1, it crashes ptxas of CUDA 12.8.
    stride_m, stride_k = strides[-2] if M > 1 else 0, strides[-1] if K > 1 else 0
    a = b = BLOCK
    if scalings[0] == "row" and find:
        b = triton.next_power_of_2(max(K, 16))
        a = max(1, TOGETHER // b)
    steps = [  # 0: one for all
        tuple(step if n > 1 else 0 for n, step in zip(*each[1:], strict=True))[-2:] or (0, 0)
        for each in (scale, scale_t)
    ]
    following = [each[0] if batch else 0 for each in (strides, value_strides, scale[2])]
    lines = [scalings[place] in ("row", "block") for place in (0, -1)]
    numbers = (
        count, M, K, stride_m, stride_k, value_strides[-2], value_strides_t[-2], *steps[0],
        *steps[1], *following, *TYPES[dtype], *lines, find, store, draws, bool(more),
        triton.next_power_of_2(count) if count else 0, a, b,
    )  # fmt: skip
    # 64 elements per thread, or 32 with as many random numbers; registers for 16 warps on an SM.
    registers = 128 if source.itemsize == 2 and not draws else None
    options = {"num_warps": min(16, a * b >> (10 if draws else 11)), "maxnreg": registers}
    rows = shape_t[1] if count else M
    grid = (triton.cdiv(rows, a) * triton.cdiv(K, b) * math.prod(batch),)
    names = quantize_kernel.arg_names[-len(numbers) :]
    return grid, dict(zip(names, numbers, strict=True)), options


def _fake(x, dtype, scaling: str, turned=None, seed=None, offs=None) -> list[torch.Tensor]:
    scalings = (scaling, turned)[: 1 + bool(turned)]
    layouts = _layouts(x.shape, scalings, None if offs is None else offs.shape[0])
    made = [
        x.new_empty_strided(shape, strides, dtype=torch.float32 if nth % 2 else dtype)
        for nth, (shape, strides) in enumerate(layouts)
    ]
    return made if offs is None else [*made, torch.empty_like(offs)]


def _empty(x, dtype, scalings, offs) -> list[torch.Tensor]:
    """The tensors of `_fake`, with memory for the padding of each row."""
    made, groups = [], None if offs is None else offs.shape[0]
    for nth, (shape, strides, size) in enumerate(_known_layouts(x.shape, scalings, groups)):
        kind = torch.float32 if nth % 2 else dtype
        if size is None:
            made.append(x.new_empty_strided(shape, strides, dtype=kind))
        else:
            made.append(x.new_empty(size, dtype=kind).as_strided(shape, strides))
    return made


@functools.lru_cache(maxsize=4096)
def _known_layouts(*args) -> list[tuple]:
    """Tensors for `_layouts`, each with its elements of memory, or None if there is no padding."""
    found = []
    for shape, strides in _layouts(*args):
        size = max((n * step for n, step in zip(shape, strides, strict=True)), default=1)
        used = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        found.append((shape, strides, None if used == size else size))
    return found


def _layouts(shape, scalings, groups: int | None):
    """Shapes and strides of values and scales, and of the transpose's.

    Rows of values, and of 128 x 128 scales, are multiples of 16 bytes apart. With `groups`, the
    transpose has room for all the columns that whole blocks may take.
    """
    turned = shape[::-1]
    if groups is not None:
        most = shape[0] + (BLOCK - 1) * (groups + 1)
        turned = shape[1], -(-most // BLOCK) * BLOCK
    for (*batch, M, K), scaling in zip((shape, turned), scalings, strict=False):
        m, k = -(-M // BLOCK), -(-K // BLOCK)
        known = {"tensor": ((), ()), "row": ((M, 1), (1, 1)), "block": ((M, k), (1, M))}
        for size, steps in (
            ((M, K), (-(-K // 16) * 16, 1)),
            known.get(scaling, ((m, k), (-(-k // 4) * 4, 1))),
        ):
            between = (size[0] * steps[0],) if batch else ()
            yield (*batch, *size), (*between, *steps)


implement_whole(QUANTIZE, _quantize, _fake)
