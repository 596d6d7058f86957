"""Runs one instruction of the table on tensors: checks, packs, calls the .cu."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch

from cuda_reference import loader
from tritemm.problem import short_name

from .table import BITS, DTYPES, Entry

#: Bytes that each stored line of an operand begins on a multiple of, as wmma.load asks.
ALIGNMENT = 32
#: What s4 and u4 hold.
RANGES = {"s4": (-8, 7), "u4": (0, 15)}


class Operands(ctypes.Structure):
    """`struct Operands` of instruction.cuh, which says what the fields mean."""

    _fields_: ClassVar = [
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
        ("lda", ctypes.c_int32),
        ("ldb", ctypes.c_int32),
        ("ldc", ctypes.c_int32),
        ("ldd", ctypes.c_int32),
        ("c_by_columns", ctypes.c_int32),
        ("d_by_columns", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("scale_d", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    ]


def why_not(entry: Entry, capability: tuple[int, int]) -> str | None:
    """Why a GPU of this compute capability can't run the instruction, or None if it can."""
    has = f"this GPU has {capability[0]}.{capability[1]}"
    if entry.instruction == "wgmma" and capability[0] != 9:
        return f"{entry.name}: wgmma needs compute capability 9.0; {has}"
    least = (8, 0) if "80" in entry.architectures else (9, 0)
    if capability < least:
        return f"{entry.name} needs compute capability {least[0]}.{least[1]}; {has}"
    return None


def multiply(
    entry: Entry,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    c_layout: str = "row",
    d_layout: str = "row",
    source: str | None = None,
) -> torch.Tensor:
    """D = A B + C by one instruction, on A's device and its current stream.

    With the signs and scales of the entry, if it has such.

    Args:
        entry: what to run. Its `shape` is (M, N, K).
        a, b, c: [M, K], [K, N] and [M, N], of any strides; copied into the entry's layouts. Their
            dtypes are `table.DTYPES` of the entry's types: for s4 and u4 int8 and uint8, with
            values that fit; for b1 bool; for tf32 float32, rounded to nearest, halves away from
            zero.
        out: where to put D, with lines that begin on multiples of 32 bytes; new memory if None.
        c_layout, d_layout: "row" or "col", how C is loaded and D is stored: by rows, or by columns,
            which wmma alone can.
        source: the .cu that runs it, one of those that hold the entry (`table.held_by`).

    Returns:
        D, [M, N]; `out` if it was given.

    Raises:
        ValueError: a tensor does not fit the entry, or the GPU lacks the instruction.
        cuda_reference.loader.Unavailable: the .cu can't be built here.
        RuntimeError: CUDA failed; the message names the entry.
    """
    m, n, k = entry.shape
    tensors = {
        "a": (a, (m, k), entry.a),
        "b": (b, (k, n), entry.b),
        "c": (c, (m, n), entry.c),
        "out": (out, (m, n), entry.d),
    }
    given = {name: what for name, what in tensors.items() if what[0] is not None}
    reasons = [_no_such_layout(entry, c_layout, d_layout)]
    reasons += [_misfit(name, *what) for name, what in given.items()]
    reasons += [_misplaced(name, what[0], a.device) for name, what in given.items()]
    if out is not None:
        reasons.append(_unwritable(out, d_layout))
    if reason := next(filter(None, reasons), None):
        raise ValueError(f"{entry.name}: {reason}")
    capability = torch.cuda.get_device_capability(a.device)
    if reason := why_not(entry, capability):
        raise ValueError(reason)
    library = loader.library(source or entry.source, loader.architecture(capability))

    with torch.cuda.device(a.device):
        # References to what the kernel reads are held until it is in the stream.
        a_lines, lda = _stored(a if entry.a_layout == "row" else a.mT, entry.a)
        b_lines, ldb = _stored(b if entry.b_layout == "row" else b.mT, entry.b)
        c_lines, ldc = _stored(c if c_layout == "row" else c.mT, entry.c)
        d = _new(m, n, entry.d, a.device, d_layout) if out is None else out
        operands = Operands(
            a=a_lines.data_ptr(),
            b=b_lines.data_ptr(),
            c=c_lines.data_ptr(),
            d=d.data_ptr(),
            lda=lda,
            ldb=ldb,
            ldc=ldc,
            ldd=d.stride(0 if d_layout == "row" else 1),
            c_by_columns=c_layout == "col",
            d_by_columns=d_layout == "col",
            swizzle=entry.swizzle,
            scale_d=entry.scale_d,
            stream=torch.cuda.current_stream().cuda_stream,
        )
        error = library.run(entry.ptx.encode(), ctypes.byref(operands))
    if error is not None:
        raise RuntimeError(f"{entry.name}: {error.decode(errors='replace')}")
    return d


def _misfit(name: str, tensor: torch.Tensor, shape: tuple[int, int], type_: str) -> str | None:
    """What is wrong with a tensor's shape, dtype or values, and what it should be."""
    if tensor.shape != shape:
        return f"{name} is {list(tensor.shape)}; it should be {list(shape)}"
    if tensor.dtype != DTYPES[type_]:
        want = short_name(DTYPES[type_])
        return f"{name} is {short_name(tensor.dtype)}; {type_} is held by {want}"
    if type_ in RANGES:
        low, high = RANGES[type_]
        least, most = (int(value) for value in tensor.aminmax())
        if least < low or most > high:
            return f"{name} holds {least} to {most}; {type_} holds {low} to {high}"
    return None


def _misplaced(name: str, tensor: torch.Tensor, device: torch.device) -> str | None:
    """What is wrong with where a tensor is, and where it should be."""
    if not tensor.is_cuda:
        return f"{name} is on {tensor.device}; it should be on a CUDA device"
    if tensor.device != device:
        return f"{name} is on {tensor.device} and a on {device}; move one of them"
    return None


def _no_such_layout(entry: Entry, *layouts: str) -> str | None:
    for name, layout in zip(("c_layout", "d_layout"), layouts, strict=True):
        if layout not in ("row", "col"):
            return f'{name} is {layout!r}; "row" or "col"'
        if layout == "col" and entry.instruction != "wmma":
            return f'{name} is "col"; {entry.instruction} has its accumulator in registers: "row"'
    return None


def _unwritable(out: torch.Tensor, layout: str) -> str | None:
    """Why D can't be stored in `out`, and what could be."""
    lines = out if layout == "row" else out.mT
    pitch = lines.stride(0)
    apart = lines.stride(1) != 1 or pitch < lines.shape[1]
    if apart or pitch * out.itemsize % ALIGNMENT or out.data_ptr() % ALIGNMENT:
        line = "rows" if layout == "row" else "columns"
        return (
            f"out has strides {list(out.stride())} of {out.itemsize} bytes; its elements "
            f"should be side by side in {line} that begin on multiples of {ALIGNMENT} bytes"
        )
    return None


def _new(rows: int, cols: int, type_: str, device: torch.device, layout: str) -> torch.Tensor:
    """Uninitialised [rows, cols] whose lines begin on multiples of ALIGNMENT bytes."""
    if layout == "col":
        return _new(cols, rows, type_, device, "row").mT
    dtype = DTYPES[type_]
    pitch = _round_up(cols * dtype.itemsize) // dtype.itemsize
    return torch.empty(rows, pitch, dtype=dtype, device=device)[:, :cols]


def _stored(lines: torch.Tensor, type_: str) -> tuple[torch.Tensor, int]:
    """A copy as the kernels read it, in bytes, and the elements from one line to the next."""
    bits = BITS[type_]
    packed = _pack(lines, bits) if bits < 8 else lines.contiguous().view(torch.uint8)
    pitch = _round_up(packed.shape[1])
    storage = packed.new_empty(packed.shape[0], pitch)
    storage[:, : packed.shape[1]] = packed
    return storage, pitch * 8 // bits


def _pack(lines: torch.Tensor, bits: int) -> torch.Tensor:
    """Elements of less than a byte, the first in a byte's lowest bits."""
    each = 8 // bits
    parts = (lines.to(torch.uint8) & (1 << bits) - 1).unflatten(1, (-1, each))
    shifts = bits * torch.arange(each, dtype=torch.uint8, device=lines.device)
    return (parts << shifts).sum(-1, dtype=torch.uint8)


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
