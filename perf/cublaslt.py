"""cuBLASLt through ctypes: the algorithms that its heuristic lists for a product, and their launch.

Its matrices lie by columns, torch's by rows. Read by columns, C is its transpose, and C' = B' A':
cuBLASLt's A is torch's b, and its B is torch's a. Numbers and structures are those of cublasLt.h,
the same in CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from pathlib import Path

import torch

#: Bytes of workspace that an algorithm may use, and how many algorithms are asked for.
WORKSPACE, ALGORITHMS = 64 * 2**20, 8
#: cudaDataType_t; cublasComputeType_t by how fp32 operands are multiplied.
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
COMPUTE = {"ieee": 68, "tf32": 77}
#: cublasLtMatmulDescAttributes_t, whose values are 1 for a transposed matrix, else 0;
#: cublasLtMatrixLayoutAttribute_t; cublasLtMatmulPreferenceAttributes_t, of A, B, C and D.
TRANSA, TRANSB = 3, 4
BATCH_COUNT, BATCH_STRIDE = 5, 6
MAX_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)
#: Bytes: what cuBLASLt takes for granted of a pointer that nothing is said of.
ALIGNED = 256


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque."""

    _fields_ = (("data", c_uint64 * 8),)


class Listed(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm of the list; valid where `state` is 0."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_SET = (pointer, c_int, pointer, c_size_t)
#: The arguments of each function; all return a cublasStatus_t.
SIGNATURES = {
    "cublasLtCreate": (POINTER(pointer),),
    "cublasLtMatmulDescCreate": (POINTER(pointer), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (pointer,),
    "cublasLtMatrixLayoutCreate": (POINTER(pointer), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatrixLayoutDestroy": (pointer,),
    "cublasLtMatmulPreferenceCreate": (POINTER(pointer),),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (pointer,),
    "cublasLtMatmulAlgoGetHeuristic": (
        *[pointer] * 7, c_int, POINTER(Listed), POINTER(c_int),
    ),
    "cublasLtMatmul": (*[pointer] * 12, POINTER(Algorithm), pointer, c_size_t, pointer),
}  # fmt: skip


class Library:
    """cuBLASLt's functions, and a handle. A status that is no success is a RuntimeError."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        named = library.cublasLtGetStatusName
        named.argtypes, named.restype = (c_int,), ctypes.c_char_p
        self.handle = self.made("cublasLtCreate")

    def call(self, name: str, *arguments) -> None:
        if status := getattr(self._library, name)(*arguments):
            said = self._library.cublasLtGetStatusName(status).decode()
            raise RuntimeError(f"{name}: {said} ({status})")

    def made(self, name: str, *arguments) -> pointer:
        """What a `...Create` function writes to its first argument."""
        found = pointer()
        self.call(name, byref(found), *arguments)
        return found


@functools.cache
def library() -> Library:
    """That which torch has loaded, else an installed one; OSError where there is none.

    A CUDA context must be there.
    """
    for path in candidates():
        try:
            return Library(ctypes.CDLL(path))
        except OSError:
            continue
    raise OSError("libcublasLt was not found: neither loaded by torch, nor in its nvidia packages")


def candidates() -> Iterator[str]:
    """What `ctypes.CDLL` may be given, the likeliest first."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        yield from dict.fromkeys(loaded(maps.read_text().splitlines()))
    packages = Path(torch.__file__).parent.parent / "nvidia"
    for major in (12, 13) if (torch.version.cuda or "").startswith("12") else (13, 12):
        name = f"libcublasLt.so.{major}"
        yield name
        yield from map(str, sorted(packages.glob(f"*/lib/{name}")))


def loaded(maps: Iterable[str]) -> Iterator[str]:
    """The files of cuBLASLt among the lines of /proc/self/maps."""
    for line in maps:
        path = line.split(maxsplit=5)[5:]
        if path and Path(path[0]).name.startswith("libcublasLt.so"):
            yield path[0]


@functools.cache
def workspace(device: torch.device) -> torch.Tensor:
    """One for all launches, which are one after another; never made inside a capture."""
    return torch.empty(WORKSPACE, dtype=torch.uint8, device=device)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A matrix by columns: `rows` elements side by side in memory, columns `ld` elements apart."""

    rows: int
    cols: int
    ld: int
    transposed: bool

    @staticmethod
    def of(t: torch.Tensor, turned: bool = True) -> Layout:
        """How the transpose of a torch matrix is read; `transposed`: as the matrix itself.

        Where one dimension is 1 both may fit, and the longer columns are taken. Without `turned`
        only the transpose will do. ValueError where neither dimension's elements are side by side.
        """
        (rows, cols), (down, along) = t.shape[-2:], t.stride()[-2:]
        ways = [(cols, rows, along, down, False), (rows, cols, down, along, True)]
        # Elements of a column side by side, and no columns that overlap; what isn't used is free.
        fitting = [
            Layout(rows, cols, max(ld, rows), transposed)
            for rows, cols, step, ld, transposed in ways[: 1 + turned]
            if (step == 1 or rows <= 1) and (ld >= rows or cols <= 1)
        ]
        if not fitting:
            what = f"shape {tuple(t.shape)} and strides {t.stride()}"
            raise ValueError(f"cuBLASLt takes no matrix of {what}: its rows must be whole")
        return max(fitting, key=lambda layout: layout.rows)  # of equals the first


def alignment(t: torch.Tensor) -> int:
    """Bytes, a power of two up to `ALIGNED`."""
    address = t.data_ptr()
    return min(ALIGNED, address & -address) if address else ALIGNED


def geometry(*tensors: torch.Tensor) -> tuple:
    """What a `Product` depends on, of its tensors."""
    return tuple((t.shape, t.stride(), alignment(t)) for t in tensors)


class Descriptor:
    """What cuBLASLt made of a `kind`, with its attributes; destroyed with this object."""

    def __init__(self, lt: Library, kind: str, attributes: Mapping, *arguments):
        self.address = lt.made(f"cublasLt{kind}Create", *arguments)
        weakref.finalize(self, lt.call, f"cublasLt{kind}Destroy", self.address).atexit = False
        for name, value in attributes.items():
            size = ctypes.sizeof(value)
            lt.call(f"cublasLt{kind}SetAttribute", self.address, name, byref(value), size)


class Product:
    """C = A B of tensors of one geometry; `algorithms` may compute it, cuBLASLt's favourite first.

    Matrices or equal batches of them, 16-bit into their own type or fp32, or fp32, accumulated in
    fp32. ValueError on tensors that it can't be asked for.
    """

    def __init__(
        self, lt: Library, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str
    ):
        _check(a, b, c, precision)
        self._lt, self._workspace = lt, workspace(c.device)
        first, second = Layout.of(b), Layout.of(a)
        turned = {TRANSA: c_int32(first.transposed), TRANSB: c_int32(second.transposed)}
        aligned = (c_uint32(alignment(t)) for t in (b, a, c, c))
        wanted = {MAX_WORKSPACE: c_uint64(WORKSPACE), **dict(zip(ALIGNMENTS, aligned, strict=True))}
        self._made: list[Descriptor] = []

        def made(*given) -> pointer:
            self._made.append(Descriptor(lt, *given))
            return self._made[-1].address

        def matrix(t: torch.Tensor, layout: Layout) -> pointer:
            batch = {BATCH_COUNT: c_int32(t.shape[0]), BATCH_STRIDE: c_int64(t.stride(0))}
            sizes = layout.rows, layout.cols, layout.ld
            return made("MatrixLayout", batch if t.dim() == 3 else {}, TYPES[t.dtype], *sizes)

        types = COMPUTE[precision], TYPES[torch.float32]
        self._operation = made("MatmulDesc", turned, *types)
        self._a, self._b = matrix(b, first), matrix(a, second)
        self._c = matrix(c, Layout.of(c, turned=False))
        preference = made("MatmulPreference", wanted)
        listed, count = (Listed * ALGORITHMS)(), c_int()
        lt.call(
            "cublasLtMatmulAlgoGetHeuristic", lt.handle, self._operation, self._a, self._b,
            self._c, self._c, preference, ALGORITHMS, listed, byref(count),
        )  # fmt: skip
        self.algorithms = [each for each in listed[: count.value] if each.state == 0]
        if not self.algorithms:
            raise RuntimeError("cublasLtMatmulAlgoGetHeuristic: it lists no algorithm")

    def run(self, index: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Enqueue one product by that algorithm, of tensors of this geometry."""
        self._lt.call(
            "cublasLtMatmul", self._lt.handle, self._operation,
            byref(_ONE), b.data_ptr(), self._a, a.data_ptr(), self._b,
            byref(_ZERO), c.data_ptr(), self._c, c.data_ptr(), self._c,
            byref(self.algorithms[index].algorithm),
            self._workspace.data_ptr(), WORKSPACE, _stream(c.device),
        )  # fmt: skip


_ONE, _ZERO = c_float(1), c_float(0)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _check(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str) -> None:
    """A wrong size would be read past the end of a tensor."""
    if a.dim() not in (2, 3) or c.shape != (*a.shape[:-1], b.shape[-1]):
        shapes = ", ".join(str(tuple(t.shape)) for t in (a, b, c))
        raise ValueError(f"no product of matrices, or of batches of them: {shapes}")
    if b.shape != (*a.shape[:-2], a.shape[-1], c.shape[-1]):
        raise ValueError(f"{tuple(a.shape)} and {tuple(b.shape)} don't fit together")
    if a.dtype != b.dtype or a.dtype not in TYPES or c.dtype not in (a.dtype, torch.float32):
        raise ValueError(f"no types for cuBLASLt: {a.dtype}, {b.dtype} into {c.dtype}")
    if precision not in COMPUTE:
        raise ValueError(f"cuBLASLt multiplies fp32 as {' or '.join(COMPUTE)}, not {precision}")
