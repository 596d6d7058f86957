"""One product: sizes, strides, types, its epilogue, and the device it runs on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from .device import Device
from .epilogue import PLAIN, EpilogueSpec
from .matrix import Matrix, short_name
from .residues import LONGEST, RESIDUES
from .scales import BLOCK, Scales
from .tile_space import Grouped, TileSpace, Triangle

#: dtype of the operands -> dtype of the accumulator, unless the caller asks for another.
ACCUMULATE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.int8: torch.int32,
}

#: Precision -> how many products of planes it sums. An fp32 operand is split into `PLANES` bf16
#: planes, each nearest to what the previous ones leave. They add up to `PLANE_FACTOR` times the
#: operand, so that the planes of the smallest subnormal number are bf16 numbers too.
PRODUCTS = {"bf16x6": 6, "bf16x9": 9}
PLANES, PLANE_FACTOR = 3, 2.0**16
#: Elements of K in a step of planes: K is padded to a multiple, and the largest product is promoted
#: after each step.
PLANE_STEP = 64

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Problem:
    """C[i, j] = A[i, j] @ B[i, j] for the `batches` (i, j); A is M x K, B is K x N.

    `precision` says how fp32 operands are multiplied: ieee, tf32, tf32x3, bf16x3, bf16x6, bf16x9 or
    one of `RESIDUES`; for fp64, ieee or one of `RESIDUES`.
    The `epilogue` turns the accumulator into C. M and N are those of the product: C has
    N / `epilogue.per_column` columns.

    If operands have been split into `planes`, A and B have three of them along K, in bf16, and K
    runs over the products of planes. A `guarded` product is computed only if a flag is set.

    The products of a batch may be `groups`: A's and C's rows ("m"), B's and C's columns ("n"), or
    K ("k") are then those of all groups, one after another, cut where a tensor says. The cut
    dimension has no batch stride. Groups of K are `in_blocks` if each begins and ends at a multiple
    of 128, which the caller promises.

    8-bit operands may have `scales`.
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
    epilogue: EpilogueSpec = PLAIN
    groups: str = ""
    scales: Scales | None = None
    in_blocks: bool = False
    guarded: bool = False

    @staticmethod
    def of(
        a, b, c, *, accumulate=None, precision="ieee", device: Device | None = None,
        residual=None, groups: str = "", scales=None, in_blocks=False, **epilogue,
    ) -> Problem:  # fmt: skip
        """The problem of `a` [..., M, K], `b` [..., K, N] and `c`, equal batch dims.

        Adjacent batch dimensions are merged if all tensors allow it; more than two that don't
        merge raise ValueError, because kernels take two batch strides. `residual` has c's shape;
        other fields of the `EpilogueSpec` are passed by name. With `groups`, the cut operand is one
        matrix for all groups; RuntimeError if it is longer than int32 offsets can say. `scales`:
        those of a and b, and whether sums are promoted, see `Scales`.
        """
        if groups:
            count = max(t.shape[:-2] for t in (a, b, c))
            a, b, c = (t.expand(*count, *t.shape[-2:]) for t in (a, b, c))
        tensors = (a, b, c) if residual is None else (a, b, c, residual)
        sizes, strides = _merge_batches(*tensors)
        M, K = a.shape[-2:]
        N = b.shape[-1]
        if groups and (cut := {"m": M, "n": N, "k": K}[groups]) >= 2**31:
            raise RuntimeError(
                f"offs is int32, and the {groups.upper()} that it cuts is {cut}: multiply "
                "the parts below and beyond 2**31 separately"
            )
        if device is None:
            device = Device.of(a.device)
        of_a, of_b, of_c, *more = [
            Matrix(t.dtype, t.size(-2), t.size(-1), batch + t.stride()[-2:], t.data_ptr() % 16 == 0)
            for t, batch in zip(tensors, strides, strict=True)
        ]
        accumulate = accumulate or ACCUMULATE.get(a.dtype, torch.float32)
        spec = PLAIN
        if epilogue or residual is not None:
            spec = EpilogueSpec(residual=more[0] if more else None, **epilogue)
        if scales is not None:
            of_a_lines, of_b_lines, promoted = scales
            scales = Scales.of(of_a_lines, of_b_lines, promoted and K > BLOCK)
        return Problem(
            M, N, K, sizes, of_a, of_b, of_c, accumulate, precision, device, spec, groups, scales,
            in_blocks and groups == "k",
        )  # fmt: skip

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Cached, because many tables look a new problem up."""
        return hash(tuple(self.__getstate__().values()))

    def __getstate__(self) -> dict:
        """Only the fields are pickled: hashes differ between processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B and C, and the scales and the residual if there are any."""
        more = (self.scales.a, self.scales.b) if self.scales else ()
        residual = self.epilogue.residual
        return (self.a, self.b, self.c, *more, *([residual] if residual else []))

    @property
    def batch(self) -> int:
        return self.batches[0] * self.batches[1]

    @property
    def batched(self) -> bool:
        """Whether there are batch indices; groups have one even if there is one group."""
        return self.batch > 1 or bool(self.groups)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kernels' names for a launch's inputs after a, b and c, in order."""
        scales = ("scale_a_ptr", "scale_b_ptr") * (self.scales is not None)
        flag = ("flag_ptr",) * (self.planes or self.guarded)
        return ("offs_ptr",) * bool(self.groups) + scales + self.epilogue.arguments + flag

    @property
    def typical(self) -> tuple[int, int, int, float]:
        """M, N and K of one product of the batch, and how many there are.

        The host doesn't know the groups' sizes. K is as if all had the same; M or N as if two in
        five groups shared everything, for problems where many are small or empty, others large.
        """
        return self.shared(1.0 if self.groups == "k" else 0.4)

    @property
    def filled(self) -> int:
        """The most products that can have a row and a column."""
        return min(self.batch, max(1, {"m": self.M, "n": self.N}.get(self.groups, self.batch)))

    def shared(self, part: float) -> tuple[int, int, int, float]:
        """The same if this `part` of the groups shared everything equally, at least a row each."""
        if not self.groups:
            return self.M, self.N, self.K, self.batch
        count = max(1.0, min(self.batch * part, self.filled))
        sizes = zip("mnk", (self.M, self.N, self.K), strict=True)
        M, N, K = (math.ceil(of / count) if axis == self.groups else of for axis, of in sizes)
        return M, N, K, count

    @functools.cached_property
    def space(self) -> TileSpace:
        """The product's tiles, for counting."""
        if self.groups:
            return Grouped(self.M, self.N, self.batch, self.groups)
        space = Triangle if self.epilogue.symmetric else TileSpace
        return space(self.M, self.N, self.batch)

    @property
    def itemsize(self) -> int:
        """Bytes per element of A and B."""
        return self.a.dtype.itemsize

    @property
    def line(self) -> int:
        """Elements of K in a 128-byte line, which TMA swizzles and WGMMA reads."""
        return 128 // self.itemsize

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
            {"m": "n", "n": "m"}.get(self.groups, self.groups),
            self.scales and self.scales.transposed(), self.in_blocks,
        )  # fmt: skip
        vars(other)["_transposed"] = self
        return other

    def packed(self, operands: str) -> Problem:
        """The problem after the `operands` ("a", "b" or "ab") were copied to lines for TMA.

        16-bit operands keep their major; WGMMA reads all others only with K contiguous. FFMA has
        registers for one operand along K. Operands with groups have the lines that `across` says.
        """
        if not operands:
            return self
        known: dict[str, Problem] = vars(self).setdefault("_packed", {})
        if operands in known:
            return known[operands]
        if self.is_split(operands):
            known[operands] = self._residues() if self.by_residues else self._split()
            return known[operands]
        changes = {}
        for name, major in zip("ab", "NT", strict=True):
            if name not in operands:
                continue
            matrix = getattr(self, name)
            if matrix.dtype.itemsize == 2 and matrix.layout != "-":
                major = matrix.layout
            elif self.by_ffma:
                major = "T" if operands + self.b.layout == "aT" else "N"
            changes[name] = matrix.packed(self.across.get(name, major), self.batches)
        known[operands] = dataclasses.replace(self, **changes)
        return known[operands]

    def _split(self) -> Problem:
        """The problem of both operands' planes, which keep their major, with zeros after K."""
        depth = -(-self.K // PLANE_STEP) * PLANE_STEP
        a = dataclasses.replace(self.a, cols=PLANES * depth, dtype=torch.bfloat16)
        b = dataclasses.replace(self.b, rows=PLANES * depth, dtype=torch.bfloat16)
        majors = self.a.layout.replace("-", "N"), self.b.layout.replace("-", "T")
        a, b = (m.packed(major, self.batches) for m, major in zip((a, b), majors, strict=True))
        return dataclasses.replace(self, K=PRODUCTS[self.precision] * depth, a=a, b=b)

    def _residues(self) -> Problem:
        """The problem of residues of A's rows and of B's columns: their moduli are the batch's
        outer dimension, and C holds residues too."""
        batches = RESIDUES[self.precision], self.batch

        def packed(matrix: Matrix, major: str, dtype: torch.dtype) -> Matrix:
            strides = 1, int(matrix.apart), 1, 1
            matrix = dataclasses.replace(matrix, dtype=dtype, strides=strides)
            return matrix.packed(major, batches)

        a, b = packed(self.a, "N", torch.int8), packed(self.b, "T", torch.int8)
        c = packed(dataclasses.replace(self.c, strides=(1, 1, 1, 1)), "N", torch.uint8)
        return dataclasses.replace(
            self, batches=batches, a=a, b=b, c=c, accumulate=torch.int32, precision="ieee",
            epilogue=EpilogueSpec("residue", along="batch"),
        )  # fmt: skip

    @property
    def splits(self) -> bool:
        """Whether operands may be split into planes or residues, and aren't yet; `packed` splits
        both."""
        planes = self.a.dtype == torch.float32 and self.precision in PRODUCTS
        return planes or self.by_residues

    def is_split(self, operands: str) -> bool:
        """Whether the copies of these `operands` are planes or residues."""
        return self.splits and operands == "ab"

    @property
    def only_split(self) -> bool:
        """Whether only splitting computes this precision: Triton's dot has none but bf16x6."""
        return self.splits and self.precision != "bf16x6"

    @property
    def by_residues(self) -> bool:
        """Whether operands may be multiplied as residues of integers."""
        return self.precision in RESIDUES

    def why_no_residues(self) -> str | None:
        """Why these operands can't be multiplied as residues, or None."""
        if self.groups:
            return "products of groups can't use residues"
        if self.K > LONGEST:
            return f"K is {self.K}; int32 holds sums of residues only up to K = {LONGEST}"
        return None

    @property
    def planes(self) -> bool:
        """Whether A and B are planes of fp32 operands."""
        return self.a.dtype == torch.bfloat16 and self.precision in PRODUCTS

    @property
    def across(self) -> dict[str, str]:
        """How operands that are cut into groups must be stored, so that no line is cut.

        WGMMA reads fp8 only along K, so groups `in_blocks` consist of whole parts of a line.
        """
        if self.groups == "k" and not (self.in_blocks and self.is_fp8):
            return {"a": "T", "b": "N"}
        return {"m": {"a": "N"}, "n": {"b": "T"}}.get(self.groups, {})

    @property
    def by_ffma(self) -> bool:
        """Whether fp32 is multiplied without splitting or rounding, which tensor cores can't."""
        return self.a.dtype == torch.float32 and self.precision == "ieee"

    @functools.cached_property
    def vectorised(self) -> bool:
        """Whether pointer loads of A and B are 16 bytes wide; cut lines may begin anywhere."""
        whole = all(getattr(self, name).layout == major for name, major in self.across.items())
        return self.a.vectorised and self.b.vectorised and whole

    @property
    def is_fp8(self) -> bool:
        """Whether A and B hold 8-bit floating-point numbers, of one type or two."""
        return self.a.dtype.itemsize == 1 and self.a.dtype.is_floating_point

    @property
    def sums(self) -> str:
        """How products are summed: over all of K, or over 128 elements that are promoted, and
        scaled first with scales of blocks; for planes, over 64 elements of the largest product."""
        if self.scales is None:
            return self.precision if self.planes else "whole"
        return "block" if self.scales.blocks else "promoted" if self.scales.promoted else "whole"

    @property
    def lines_per_scale(self) -> tuple[int, int]:
        """Rows of A, and columns of B, that share a scale: 1, 128, or 0 for all."""
        return (1, 1) if self.scales is None else self.scales.per(self.M, self.N)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        terms = self.M * self.N if self.groups else self.space.elements
        return 2 * terms * self.K

    @property
    def bytes(self) -> int:
        """Bytes moved if each element of the multiplied matrices is moved once."""
        return self._moved(self.matrices, self.filled)

    def copied(self, operands: str) -> int:
        """Bytes that the copies of `packed` read and write: three planes are 6 bytes for 4."""
        moved = self._moved((getattr(self, name) for name in operands), self.batch)
        if self.by_residues:  # plus C: its residues are read, and it is written
            count, result = RESIDUES[self.precision], self._moved((self.c,), self.batch)
            return sum(n * 2 + n * count // self.itemsize for n in (moved, result))
        return moved * 5 // 2 if self.is_split(operands) else 2 * moved

    def _moved(self, matrices: Iterable[Matrix], most: int) -> int:
        """Bytes of all elements of `most` products; broadcast batches count once."""
        total = 0
        outer, inner = self.batches
        inner = min(inner, most)
        for m in matrices:
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
        """Whether an index, or an offset within one matrix, can pass 2**31 elements.

        Half of that is the limit here too: pointers step by BLOCK_K. A matrix whose rows are all
        the same memory is long, but its offsets are small.
        """
        return self.long or any(
            m.rows * abs(m.strides[2]) + m.cols * abs(m.strides[3]) >= 2**30 for m in self.matrices
        )

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 and not self.groups else ""
        cut = f", {self.batch} groups along {self.groups.upper()}" if self.groups else ""
        cut += " in blocks" * self.in_blocks
        types = "{} x {} -> {}".format(*(short_name(m.dtype) for m in (self.a, self.b, self.c)))
        said = self.a.dtype == torch.float32 or self.by_residues
        precision = f" ({self.precision})" if said else ""
        then = f"; {self.scales}" if self.scales else ""
        then += "" if self.epilogue == PLAIN else f"; {self.epilogue}"
        sizes = f"{batch}{self.M} x {self.N} x {self.K}{cut}"
        return f"{sizes} {self.layout}, {types}{precision}{then}"


def _merge_batches(*tensors):
    """Sizes and per-tensor strides of two batch dimensions that cover the tensors' batches."""
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
        raise ValueError(f"{len(merged)} batch dimensions that don't merge; kernels support two")
    merged = [(1, (0,) * len(tensors))] * (2 - len(merged)) + merged
    (size_0, strides_0), (size_1, strides_1) = merged
    return (size_0, size_1), tuple(zip(strides_0, strides_1, strict=True))


_MISSING = object()


def kept(function: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """`function`, called once per problem, which keeps the answer; a table would hash it."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def answer(problem: Problem) -> T:
        known = vars(problem).get(name, _MISSING)
        if known is _MISSING:
            known = vars(problem)[name] = function(problem)
        return known

    return answer
