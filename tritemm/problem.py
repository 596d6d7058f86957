"""What a kernel is asked to do: sizes, strides, types, and the limits of the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

import torch

from . import driver
from .interpreter import INTERPRETED as INTERPRETED

#: dtype of the operands -> dtype of the accumulator, unless the caller asks for another.
ACCUMULATE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.int8: torch.int32,
}

#: What may be done to each element of C: relu(x), gelu(x) by the error function or by tanh, and
#: silu(x) = x / (1 + exp(-x)); or nothing.
Plain = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: tuple[str, ...] = ("", *get_args(Plain))
#: Of a pair of columns (gate, up): activation(gate) * up. The first half of a product's columns are
#: the gate's; C has half as many.
Gated = Literal["swiglu", "geglu"]
GATED: dict[str, str] = dict(zip(get_args(Gated), ("silu", "gelu"), strict=True))
#: What `activation=` may be.
Activation = Literal[Plain, Gated]
#: How an operand is stored: by rows as written (N), or by columns, transposed (T).
Layout = Literal["NN", "NT", "TN", "TT"]

T = TypeVar("T")


class Unsupported(RuntimeError):
    """No kernel is for the device; `short` says in a few words what it is."""

    def __init__(self, sentence: str, short: str = ""):
        super().__init__(sentence)
        self.short = short


@dataclasses.dataclass(frozen=True)
class Device:
    """The limits that kernels and their choice depend on. `shared` is bytes per program.

    `clusters`, of a card that is here: `driver.clusters_at_once`; of others, and those older than
    clusters, there are none (`gpus.clusters_at_once` knows of their models).
    """

    name: str
    capability: tuple[int, int]
    sms: int
    shared: int
    clusters: tuple[int, ...] = dataclasses.field(default=(), hash=False)

    @property
    def pdl(self) -> bool:
        """Whether a launch may begin before the one before it has ended, for the kernel to wait.

        (Programmatic dependent launch.)
        """
        return self.capability >= (9, 0) and self.name != INTERPRETER.name

    @staticmethod
    def of(device: torch.device) -> Device:
        """The device that tensors on `device` are multiplied on; Unsupported if it is AMD's."""
        if device.type == "cuda" and not INTERPRETED:
            index = torch.cuda.current_device() if device.index is None else device.index
            return _cuda_device(index)
        return INTERPRETER


@functools.cache
def _cuda_device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:  # where AMD's GPUs are cuda too, with numbers that NVIDIA's have
        raise Unsupported(
            f"tritemm's kernels are for NVIDIA GPUs, and cuda:{index} is AMD's {properties.name}; "
            "multiply by torch there",
            "an AMD GPU",
        )
    shared = properties.shared_memory_per_block_optin
    return Device(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sms=properties.multi_processor_count,
        shared=shared,
        clusters=driver.clusters_at_once(index, shared) if properties.major >= 9 else (),
    )


#: Triton's interpreter: no limits of its own; few "SMs", so that persistent loops do loop.
INTERPRETER = Device("Triton interpreter", (9, 0), 3, 1 << 30)


@dataclasses.dataclass(frozen=True)
class Matrix:
    """One operand as a kernel sees it: `strides` in elements, (batch, batch, row, column)."""

    dtype: torch.dtype
    rows: int
    cols: int
    strides: tuple[int, int, int, int]
    aligned: bool  # the first element stands on a 16-byte boundary

    def pitch(self, major: str) -> int | None:
        """Elements between the rows ("N") or columns ("T") when those are contiguous, else None.

        An axis of one element has no stride to speak of; its pitch is rounded up to 16 bytes.
        """
        return self._pitches[major != "N"]

    @functools.cached_property
    def _pitches(self) -> tuple[int | None, int | None]:
        """Of both majors: every rung asks for them, several times."""
        _, _, row, col = self.strides
        vector = 16 // self.dtype.itemsize
        by_rows = by_columns = None
        if col == 1 or self.cols == 1:
            by_rows = row if self.rows != 1 else -(-self.cols // vector) * vector
        if row == 1 or self.rows == 1:
            by_columns = col if self.cols != 1 else -(-self.rows // vector) * vector
        return by_rows, by_columns

    def pitch_is_multiple_of(self, count: int) -> bool:
        """Whether lines are contiguous and both their length and their distance divide so."""
        major = self.layout
        if major == "-":
            return False
        inner = self.cols if major == "N" else self.rows
        return inner % count == 0 and self.pitch(major) % count == 0

    def transposed(self) -> Matrix:
        """The same elements with rows and columns exchanged."""
        *batch, row, col = self.strides
        return Matrix(self.dtype, self.cols, self.rows, (*batch, col, row), self.aligned)

    def packed(self, major: str, batches: tuple[int, int]) -> Matrix:
        """A copy whose rows ("N") or columns ("T") start on 128-byte boundaries, one after another.

        Those are L2's lines: a tile's row of 128 bytes is in one of them. Batches that are
        broadcast stay so.
        """
        inner, outer = (self.cols, self.rows) if major == "N" else (self.rows, self.cols)
        vector = 128 // self.dtype.itemsize
        pitch = -(-inner // vector) * vector
        strides, step = [0, 0], outer * pitch
        for axis in (1, 0):
            if batches[axis] > 1 and self.strides[axis]:
                strides[axis] = step
                step *= batches[axis]
        line = (pitch, 1) if major == "N" else (1, pitch)
        return Matrix(self.dtype, self.rows, self.cols, (*strides, *line), aligned=True)

    @functools.cached_property
    def layout(self) -> str:
        """N: rows are contiguous; T: columns are, or the only one is; -: neither."""
        by_rows, by_columns = self._pitches
        if by_columns is not None and (by_rows is None or self.cols == 1 < self.rows):
            return "T"
        return "N" if by_rows is not None else "-"


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """What C gets of the sums: activation(alpha * sum + bias) + beta * residual.

    `activation` is one of `ACTIVATIONS`, or of `GATED`. The bias is contiguous, one element of
    `bias` for each row ("m") or column ("n") of the product: `along` says which. The residual is of
    C's size.
    """

    activation: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    bias: torch.dtype | None = None
    along: str = "n"
    residual: Matrix | None = None

    @property
    def gated(self) -> bool:
        """Whether C has a column, or if it is transposed a row, for two of the product's."""
        return self.activation in GATED

    def transposed(self) -> Epilogue:
        """That of C.T."""
        return dataclasses.replace(
            self,
            along="m" if self.along == "n" else "n",
            residual=self.residual and self.residual.transposed(),
        )

    def __str__(self) -> str:
        words = [f"alpha {self.alpha:g}"] if self.alpha != 1 else []
        words += ["bias"] if self.bias else []
        words += [self.activation] if self.activation else []
        if self.residual:
            words.append("residual" if self.beta == 1 else f"residual x {self.beta:g}")
        return ", ".join(words)


#: Of a product and no more.
PLAIN = Epilogue()


def factors(ending) -> dict[str, float]:
    """Of an `Epilogue`, or of what has its fields: the factors that a kernel is given, by name.

    One that is 1 is not there at all. What the others are is not compiled, and no part of a kind.
    """
    given = {} if ending.alpha == 1 else {"alpha": float(ending.alpha)}
    if ending.residual is not None and ending.beta != 1:
        given["beta"] = float(ending.beta)
    return given


@dataclasses.dataclass(frozen=True)
class Problem:
    """C[i, j] = A[i, j] @ B[i, j] for the `batches` (i, j); A is M x K, B is K x N.

    `precision` says how fp32 operands are multiplied: ieee, tf32, tf32x3, bf16x3 or bf16x6. The
    `epilogue` is what becomes of the sums before C is stored. M and N are those of the product:
    where the epilogue is gated, C has N / 2 columns.
    """

    M: int
    N: int
    K: int
    batches: tuple[int, int]
    a: Matrix
    b: Matrix
    c: Matrix
    accumulate: torch.dtype
    precision: str
    device: Device
    epilogue: Epilogue = PLAIN

    @staticmethod
    def of(
        a, b, c, *, accumulate=None, precision="ieee", device: Device | None = None,
        residual=None, **epilogue,
    ) -> Problem:  # fmt: skip
        """The problem of `a` [..., M, K], `b` [..., K, N] and `c` [..., M, N], equal batch dims.

        With a gated epilogue, `c` is [..., M, N / 2].

        Adjacent batch dimensions are merged where all tensors allow it; more than two that don't
        merge raise ValueError, because kernels take two batch strides. `residual` has c's shape;
        other fields of the `Epilogue` are given by name.
        """
        tensors = (a, b, c) if residual is None else (a, b, c, residual)
        sizes, strides = _merge_batches(*tensors)
        M, K = a.shape[-2:]
        N = b.shape[-1]
        if device is None:
            device = Device.of(a.device)
        matrices = [
            Matrix(t.dtype, *t.shape[-2:], (*batch, *t.stride()[-2:]), t.data_ptr() % 16 == 0)
            for t, batch in zip(tensors, strides, strict=True)
        ]
        accumulate = accumulate or ACCUMULATE[a.dtype]
        ending = PLAIN
        if epilogue or residual is not None:
            ending = Epilogue(residual=None if residual is None else matrices.pop(), **epilogue)
        return Problem(M, N, K, sizes, *matrices, accumulate, precision, device, ending)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Kept, because many tables are asked for a new problem."""
        sizes = self.M, self.N, self.K, self.batches
        how = self.accumulate, self.precision, self.device, self.epilogue
        return hash((*sizes, self.a, self.b, self.c, *how))

    def __getstate__(self) -> dict:
        """The fields alone, for pickle: hashes differ between processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B and C, and the residual if there is one."""
        residual = self.epilogue.residual
        return (self.a, self.b, self.c, *([residual] if residual else []))

    @property
    def batch(self) -> int:
        return self.batches[0] * self.batches[1]

    @property
    def itemsize(self) -> int:
        """Bytes per element of A and B."""
        return self.a.dtype.itemsize

    @property
    def layout(self) -> str:
        return self.a.layout + self.b.layout

    def transposed(self) -> Problem:
        """The problem of C.T = B.T @ A.T."""
        return self._transposed

    @functools.cached_property
    def _transposed(self) -> Problem:
        a, b, c = self.b.transposed(), self.a.transposed(), self.c.transposed()
        other = Problem(
            self.N, self.M, self.K, self.batches, a, b, c,
            self.accumulate, self.precision, self.device,
            PLAIN if self.epilogue == PLAIN else self.epilogue.transposed(),
        )  # fmt: skip
        vars(other)["_transposed"] = self
        return other

    def with_factors(self, **values: float) -> Problem:
        """The same with other factors, of those that there are: alpha, beta."""
        there = factors(self.epilogue)
        new = {name: value for name, value in values.items() if name in there}
        if new.items() <= there.items():
            return self
        return dataclasses.replace(self, epilogue=dataclasses.replace(self.epilogue, **new))

    def packed(self, operands: str) -> Problem:
        """The problem after the `operands` ("a", "b" or "ab") were copied to lines for TMA.

        16-bit operands keep their major; WGMMA reads all others only with K contiguous.
        """
        changes = {}
        for name, along_k in (("a", "N"), ("b", "T")):
            if name in operands:
                matrix = getattr(self, name)
                keeps = matrix.dtype.itemsize == 2 and matrix.layout != "-"
                major = matrix.layout if keeps else along_k
                changes[name] = matrix.packed(major, self.batches)
        return dataclasses.replace(self, **changes)

    @functools.cached_property
    def vectorised(self) -> bool:
        """Whether pointer loads of A and B are 16 bytes wide.

        Triton knows of its integer arguments whether 16 divides them, and nothing finer.
        """
        return all(m.aligned and m.pitch_is_multiple_of(16) for m in (self.a, self.b))

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.M * self.N * self.K

    @property
    def bytes(self) -> int:
        """Bytes moved if each element of a matrix is moved once; broadcast batches count once."""
        total = 0
        outer, inner = self.batches
        for m in self.matrices:
            copies = (outer if m.strides[0] else 1) * (inner if m.strides[1] else 1)
            total += copies * m.rows * m.cols * m.dtype.itemsize
        return total

    @property
    def long(self) -> bool:
        """Whether an index can pass 2**31.

        Half of that is the limit here: tiles and steps of K reach past the edges.
        """
        return max(self.M, self.N, self.K) >= 2**30

    @property
    def wide(self) -> bool:
        """Whether an index, or an offset inside one matrix, can pass 2**31 elements.

        Half of that is the limit here too: pointers step by BLOCK_K. A matrix whose rows are all
        one row in memory is long without being far from end to end.
        """
        return self.long or any(
            m.rows * abs(m.strides[2]) + m.cols * abs(m.strides[3]) >= 2**30 for m in self.matrices
        )

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        types = "{} x {} -> {}".format(*(short_name(m.dtype) for m in (self.a, self.b, self.c)))
        precision = f" ({self.precision})" if self.a.dtype == torch.float32 else ""
        then = "" if self.epilogue == PLAIN else f"; {self.epilogue}"
        return f"{batch}{self.M} x {self.N} x {self.K} {self.layout}, {types}{precision}{then}"


def stored(make: Callable[..., torch.Tensor], *shape: int, layout: str, **options) -> torch.Tensor:
    """[*batch, rows, cols] of `make(*sizes, **options)`, by rows (layout N) or by columns (T)."""
    if layout == "N":
        return make(*shape, **options)
    *batch, rows, cols = shape
    return make(*batch, cols, rows, **options).mT


def short_name(dtype: torch.dtype) -> str:
    """bf16 for torch.bfloat16."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def _merge_batches(*tensors):
    """Sizes and per-tensor strides of two batch dimensions that walk the tensors' batches."""
    shape = tensors[0].shape[:-2]
    if not shape:
        return (1, 1), ((0, 0),) * len(tensors)
    merged: list[tuple[int, tuple[int, ...]]] = []
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        strides = tuple(t.stride(dim) for t in tensors)
        if merged and all(
            outer == inner * size for outer, inner in zip(merged[-1][1], strides, strict=True)
        ):
            merged[-1] = (merged[-1][0] * size, strides)
        else:
            merged.append((size, strides))
    if len(merged) > 2:
        raise ValueError(f"{len(merged)} batch dimensions that don't merge; kernels take two")
    merged = [(1, (0,) * len(tensors))] * (2 - len(merged)) + merged
    (size_0, strides_0), (size_1, strides_1) = merged
    return (size_0, size_1), tuple(zip(strides_0, strides_1, strict=True))


_MISSING = object()


def kept(function: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """`function`, asked once for each problem, which keeps the answer; a table would hash it."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def answer(problem: Problem) -> T:
        known = vars(problem).get(name, _MISSING)
        if known is _MISSING:
            known = vars(problem)[name] = function(problem)
        return known

    return answer
