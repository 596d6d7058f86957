"""A CUDA rung: the contract of `tritemm.spec`, and what passes between Python and its .cu."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from pathlib import Path
from typing import ClassVar

import torch

from tritemm.arch.scaled import HAS_FP8
from tritemm.problem import BLOCK, INTERPRETER, Matrix, Problem, short_name
from tritemm.spec import Config, Kernel

from . import loader, source

#: enum Type and enum Order of include/abi.cuh.
TYPES = {torch.float16: 0, torch.bfloat16: 1}
ACCUMULATORS = {torch.float32: 0, torch.float16: 1}
ORDERS = {"linear": 0, "serpentine": 1, "grouped": 2}

#: The largest M, N and K of the Hopper rungs: their 32-bit coordinates reach a tile past the edge.
LONGEST = 2**31 - 2**10
#: Elements between rows from which the tiled classic rungs' offsets are too short (tile.cuh).
FARTHEST = 2**27


class Call(ctypes.Structure):
    """`struct Call` of include/abi.cuh, which says what the fields mean."""

    _fields_: ClassVar = [
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("M", ctypes.c_int64),
        ("N", ctypes.c_int64),
        ("K", ctypes.c_int64),
        ("lda", ctypes.c_int64),
        ("ldb", ctypes.c_int64),
        ("ldc", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("accumulate", ctypes.c_int32),
        ("b_rows_are", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("sms", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    ]


class Groups(ctypes.Structure):
    """`struct Groups` of include/groups.cuh."""

    _fields_: ClassVar = [
        ("call", Call),
        ("offs", ctypes.c_void_p),
        ("b_group", ctypes.c_int64),
        ("count", ctypes.c_int32),
    ]


class Scaled(ctypes.Structure):
    """`struct Scaled` of include/scales.cuh."""

    _fields_: ClassVar = [
        ("call", Call),
        ("scale_a", ctypes.c_void_p),
        ("scale_b", ctypes.c_void_p),
        ("a_line", ctypes.c_int64),
        ("a_step", ctypes.c_int64),
        ("b_line", ctypes.c_int64),
        ("b_step", ctypes.c_int64),
    ]


@dataclasses.dataclass(frozen=True)
class Readable:
    """What a rung needs of a problem; called with one, it says what fails, or returns None.

    `types`: of A and B; `outputs`: of C, or none if it has their type. `layouts`: of A and B; B is
    given as N x K rows in NT. `aligned`: the operands whose first element and rows must stand on
    16-byte boundaries. `hopper`: sm_90 and nothing else. `scaled`: of operands with scales alone.
    """

    types: tuple[torch.dtype, ...] = (torch.float16,)
    outputs: tuple[torch.dtype, ...] = ()
    accumulators: tuple[torch.dtype, ...] = (torch.float32, torch.float16)
    layouts: tuple[str, ...] = ("NT",)
    aligned: str = ""
    hopper: bool = False
    scaled: bool = False

    def __call__(self, problem: Problem) -> str | None:
        return (
            self._device(problem)
            or self._scales(problem)
            or self._types(problem)
            or self._batch(problem)
            or self._sizes(problem)
            or self._layout(problem)
        )

    def layout(self, problem: Problem) -> str:
        """The first layout in which the problem's operands can be read."""
        can = (layout for layout in self.layouts[:-1] if self._as(problem, layout) is None)
        return next(can, self.layouts[-1])

    def _device(self, problem: Problem) -> str | None:
        device = problem.device
        if device == INTERPRETER:
            return "the tensors are on the CPU; a CUDA kernel needs them on a GPU"
        major, minor = device.capability
        if self.hopper and major != 9:
            return f"WGMMA needs compute capability 9.0; {device.name} has {major}.{minor}"
        if major < 8:
            return f"cp.async needs compute capability 8.0; {device.name} has {major}.{minor}"
        return None

    def _types(self, problem: Problem) -> str | None:
        a, c = problem.a.dtype, problem.c.dtype
        for name, matrix in (("a", problem.a), ("b", problem.b)):
            if matrix.dtype not in self.types:
                known = " or ".join(map(short_name, self.types))
                return f"{name} is {short_name(matrix.dtype)}; this kernel multiplies {known}"
        if problem.b.dtype != a:
            return f"b is {short_name(problem.b.dtype)} and a is {short_name(a)}; cast one of them"
        if c not in (self.outputs or (a,)):
            known = " or ".join(map(short_name, self.outputs)) or f"the type of a, {short_name(a)}"
            return f"c is {short_name(c)}; this kernel writes {known}"
        accumulators = self.accumulators if a == torch.float16 else (torch.float32,)
        if problem.accumulate not in accumulators:
            known = " or ".join(map(short_name, accumulators))
            return (
                f"the accumulator is {short_name(problem.accumulate)}; "
                f"for {short_name(a)} this kernel has {known}"
            )
        return None

    def _scales(self, problem: Problem) -> str | None:
        if not self.scaled:
            return None
        if problem.scales is None:
            return "it is for operands with scales, and these have none"
        if reason := HAS_FP8(problem):
            return reason
        of_a, of_b = problem.lines_per_scale
        if of_a == BLOCK:
            return f"{BLOCK} rows of a share a scale; this kernel has one for each row"
        if of_b == 1:
            return f"each column of b has a scale; this kernel has one for {BLOCK} columns"
        return None

    def _batch(self, problem: Problem) -> str | None:
        if problem.batch != 1 and not problem.groups:
            return f"{problem.batch} matrices; this kernel multiplies one, so call it for each"
        return None

    def _sizes(self, problem: Problem) -> str | None:
        for name in "MNK" if self.hopper else "":
            size = getattr(problem, name)
            if size > LONGEST:
                return (
                    f"{name} is {size}; this kernel has 32-bit coordinates, up to {LONGEST}: "
                    f"split {name}"
                )
        return None

    def _layout(self, problem: Problem) -> str | None:
        refusals = [self._as(problem, layout) for layout in self.layouts]
        return self._groups(problem) if None in refusals else refusals[0]

    def _groups(self, problem: Problem) -> str | None:
        bytes_ = problem.b.strides[1] * problem.b.dtype.itemsize
        if problem.batch > 1 and "b" in self.aligned and bytes_ % 16:
            return (
                f"the groups of b are {bytes_} bytes apart; copies of 16 bytes need a multiple of "
                "16: b.clone() has it"
            )
        return None

    def _as(self, problem: Problem, layout: str) -> str | None:
        """Why A, B and C can't be read and written with A and B stored in this layout."""
        stored = {"a": (problem.a, layout[0]), "b": (problem.b, layout[1]), "c": (problem.c, "N")}
        for name, (matrix, major) in stored.items():
            reason = _line_refusal(name, matrix, major)
            if reason is None and name in self.aligned:
                reason = _alignment_refusal(name, matrix, major, self.hopper)
                if reason is None and not self.hopper:
                    reason = _distance_refusal(name, matrix, major)
            if reason:
                return reason
        return None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CudaKernel(Kernel):
    """A rung in CUDA. The stem of its `file` is its name; `place` is its number on the ladder."""

    file: Path
    place: int

    header_keys: ClassVar[tuple[str, ...]] = source.HEADER_KEYS

    @property
    def number(self) -> int:
        return self.place

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def readable(self) -> Readable:
        """The one thing that it needs."""
        (readable,) = self.limits.needs
        return readable

    def launch(self, problem: Problem, config: Config, a, b, c, *more) -> None:
        """Raises RuntimeError with the kernel's name and the text of the CUDA call that failed.

        `more`, as `Problem.arguments` orders it: where groups end, or the scales of A and B.
        """
        b_major = self.readable.layout(problem)[1]
        call = Call(
            a=a.data_ptr(),
            b=b.data_ptr(),
            c=c.data_ptr(),
            M=problem.M,
            N=problem.N,
            K=problem.K,
            lda=problem.a.pitch("N"),
            ldb=problem.b.pitch(b_major),
            ldc=problem.c.pitch("N"),
            type=TYPES[problem.c.dtype],
            accumulate=ACCUMULATORS[problem.accumulate],
            b_rows_are=b_major == "N",
            order=ORDERS[config.ORDER],
            group=config.GROUP_M,
            sms=problem.device.sms,
            stream=torch.cuda.current_stream(c.device).cuda_stream,
        )
        passed: ctypes.Structure = call
        if self.limits.groups:
            passed = _grouped(call, problem, *more)
        elif self.readable.scaled:
            passed = _scaled(call, problem, *more)
        arch = loader.architecture(problem.device.capability)
        error = loader.library(self.name, arch).launch(ctypes.byref(passed))
        if error is not None:
            raise RuntimeError(f"{self.name}: {error.decode(errors='replace')}")


def _grouped(call: Call, problem: Problem, offs: torch.Tensor | None = None) -> Groups:
    """The call of a rung that has groups: without `offs` it is one group, of all rows."""
    where = None if offs is None else offs.data_ptr()
    return Groups(call, where, problem.b.strides[1] if problem.groups else 0, problem.batch)


def _scaled(call: Call, problem: Problem, scale_a, scale_b) -> Scaled:
    """The call of a rung whose operands have scales."""
    strides = (matrix.strides[2:] for matrix in (problem.scales.a, problem.scales.b))
    return Scaled(call, scale_a.data_ptr(), scale_b.data_ptr(), *itertools.chain(*strides))


def _line_refusal(name: str, matrix: Matrix, major: str) -> str | None:
    if matrix.pitch(major) is not None:
        return None
    line, stride = ("row", matrix.strides[3]) if major == "N" else ("column", matrix.strides[2])
    fix = f"{name} = {name}.contiguous()" if major == "N" else f"{name} = {name}.mT.contiguous().mT"
    return (
        f"the elements of a {line} of {name} are {stride} elements apart; "
        f"this kernel needs them side by side: {fix}"
    )


def _alignment_refusal(name: str, matrix: Matrix, major: str, tma: bool) -> str | None:
    if not matrix.aligned:
        return (
            f"the first element of {name} is not on a 16-byte boundary, as copies of 16 bytes "
            f"need; {name}.clone() is"
        )
    line = "row" if major == "N" else "column"
    bytes_ = matrix.pitch(major) * matrix.dtype.itemsize
    if bytes_ % 16:
        return (
            f"{line} stride of {name} is {bytes_} bytes; copies of 16 bytes need a multiple of "
            f"16: pad the {line}s"
        )
    if tma and bytes_ == 0:
        return f"{line} stride of {name} is 0 bytes; TMA needs another: {name}.clone() has"
    return None


def _distance_refusal(name: str, matrix: Matrix, major: str) -> str | None:
    line, count = ("row", matrix.rows) if major == "N" else ("column", matrix.cols)
    if count == 1 or matrix.pitch(major) < FARTHEST:
        return None
    return (
        f"the {line}s of {name} are {matrix.pitch(major)} elements apart; this kernel has 32-bit "
        f"offsets, good for less than {FARTHEST}: {name}.clone() has them closer"
    )
