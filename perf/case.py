"""What is measured: one product's sizes, layouts and types, in words that a JSON file can hold."""

from __future__ import annotations

import dataclasses
import itertools
import re

import torch

from tritemm import problem
from tritemm.problem import ACTIVATIONS, BLOCK, GATED

from .groups import Groups

#: What may follow a product, in the words of a table: `bias gelu`, `residual`, `swiglu`; or what is
#: known of it: `symmetric`, of A and its transpose; `int4`, by a weight of 4 bits.
WORDS = ("bias", *filter(None, ACTIVATIONS), *GATED, "residual", "accumulate", "symmetric", "int4")
#: Columns of a weight of 4 bits that share a scale.
INT4_GROUP = 128

#: Operand and output types by the names that rows use; fp8 is e4m3.
DTYPES = {problem.short_name(t): t for t in (*problem.ACCUMULATE, torch.int32)}
DTYPES["fp8"] = torch.float8_e4m3fn
#: Accumulator of each operand type, unless another one is given.
ACCUMULATE = {problem.short_name(t): problem.short_name(a) for t, a in problem.ACCUMULATE.items()}
ACCUMULATE["fp8"] = "fp32"
#: Output type of each operand type, unless another one is given.
OUTPUT = {name: name for name in ACCUMULATE} | {"int8": "int32", "fp8": "bf16"}

#: What shares a scale in A and in B, as recipes of `tritemm.scaled_mm`, by the words of a table.
SCALINGS = {
    "tensor": ("tensor", "tensor"),
    "row": ("row", "row"),
    "block": ("block", "block2d"),
    "block block": ("block", "block"),
    "block2d block": ("block2d", "block"),
}
#: Those whose sums may be left to the tensor core.
WHOLE = "tensor", "row"
#: The word for such sums of fp8, `use_fast_accum`, instead of an accumulator's.
FAST = "fast"


@dataclasses.dataclass(frozen=True)
class Ending:
    """activation(product + bias) + residual; or, to accumulate, what the output held + product.

    A gated activation is of a product whose first half of columns is the gate's: the result has
    half as many. A symmetric product is that of A and its transpose. `int4`: tritemm's weight has 4
    bits, and torch's the same numbers in 16.
    """

    bias: bool = False
    activation: str = ""
    residual: bool = False
    accumulate: bool = False
    symmetric: bool = False
    int4: bool = False

    @staticmethod
    def parse(text: str | None) -> Ending:
        """The ending of words with blanks between them; none is no ending. Raises ValueError."""
        words = (text or "").split()
        for word in words:
            if word not in WORDS:
                raise ValueError(f"an ending is made of {', '.join(WORDS)}, not {word!r}")
        acts = [word for word in words if word in ACTIVATIONS or word in GATED]
        residual, accumulate = "residual" in words, "accumulate" in words
        symmetric, int4 = "symmetric" in words, "int4" in words
        made = Ending("bias" in words, "".join(acts[:1]), residual, accumulate, symmetric, int4)
        if len(set(words)) < len(words) or len(acts) > 1:
            raise ValueError(f"an ending has each word once and one activation, not {text!r}")
        if (made.accumulate or made.gated or symmetric or int4) and len(words) > 1:
            raise ValueError(
                f"accumulate, symmetric, int4 and gated activations stand alone, not in {text!r}"
            )
        return made

    @property
    def gated(self) -> bool:
        return self.activation in GATED


@dataclasses.dataclass(frozen=True)
class Case:
    """`batch` products C = A B with A M x K and B K x N; `layout` is N (stored as written) or T.

    `precision` says how fp32 and fp64 are multiplied, as in `tritemm.problem.Problem`; `out_dtype`
    is None where the output has the operands' own type (`OUTPUT`). `ending` is what follows the
    product, in words; None: nothing. Of `groups` M, or K, is that of all together. `scaling`, of
    `SCALINGS`, says what scales operands of 8 bits have; None: none.
    """

    M: int
    N: int
    K: int
    layout: str = "NN"
    dtype: str = "bf16"
    accumulate: str = "fp32"
    precision: str = "ieee"
    batch: int = 1
    out_dtype: str | None = None
    ending: str | None = None
    groups: Groups | None = None
    scaling: str | None = None

    @property
    def after(self) -> Ending:
        return Ending.parse(self.ending)

    @property
    def columns(self) -> int:
        """Columns of C: half of B's where its halves are gate and up."""
        return self.N // 2 if self.after.gated else self.N

    @property
    def total(self) -> int:
        """What groups divide: all rows, or all of K."""
        return self.M if self.groups and self.groups.cut == "m" else self.K

    @property
    def in_blocks(self) -> bool:
        """Whether groups of K begin at multiples of 128, as `tritemm.quantize` has them."""
        return bool(self.groups and self.groups.cut == "k" and self.scaling not in (None, *WHOLE))

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each of the groups ends in the operands, with what fills its last block."""
        ends = self.groups.ends(self.total)
        if not self.in_blocks:
            return ends
        sizes = (end - begin for begin, end in itertools.pairwise((0, *ends)))
        return tuple(itertools.accumulate(-(-size // BLOCK) * BLOCK for size in sizes))

    @property
    def depth(self) -> int:
        """K of the operands."""
        return self.ends[-1] if self.in_blocks else self.K

    @property
    def output(self) -> str:
        """Name of the type of C."""
        return self.out_dtype or ("bf16" if self.scaling else OUTPUT[self.dtype])

    @property
    def sums(self) -> list[str]:
        """What sums may be made in: the accumulator, and of some scales `FAST` too."""
        return [self.accumulate] + [FAST] * (self.dtype == "fp8" and self.scaling in WHOLE)

    @property
    def kind(self) -> str:
        """The operands' type: tf32 for fp32 that is multiplied as tf32."""
        return "tf32" if (self.dtype, self.precision) == ("fp32", "tf32") else self.dtype

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.M * self.N * self.K

    @property
    def bytes(self) -> int:
        """Bytes of A and B, each read once, and of C, written once; and of scales, and of what
        follows, read. Of a weight of 4 bits, the stored bytes count, however it is read.

        The B of an empty group is not read.
        """
        size, after, groups = DTYPES[self.dtype].itemsize, self.after, self.groups
        used = groups.used(self.M) if groups and groups.cut == "m" else 1
        lines = self.M if after.symmetric else self.M + used * self.N
        operands = lines * self.depth * size + after.bias * self.N * size
        if after.int4:
            count = self.N * self.K
            operands += count // 2 + count // INT4_GROUP * size - count * size
        if self.scaling:
            # Of groups of K, without scales of the whole of their K, which are few.
            each = zip((self.M, self.N), (1, used), SCALINGS[self.scaling], strict=True)
            for count, times, recipe in each:
                rows, terms = sharing(recipe, count, self.depth)
                operands += 4 * times * -(-count // rows) * -(-self.depth // terms)
        results = self.M * self.columns * (1 + (after.residual or after.accumulate))
        results *= groups.count if groups and groups.cut == "k" else 1
        return self.batch * (operands + results * DTYPES[self.output].itemsize)

    @property
    def size(self) -> str:
        """`4096 x 4096 x 4096`, M x N x K; the batch before it."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.M} x {self.N} x {self.K}"

    def __str__(self) -> str:
        said = self.dtype == "fp32" or self.precision != "ieee"
        precision = f" ({self.precision})" if said else ""
        output = f" -> {self.out_dtype}" if self.out_dtype else ""
        accumulate = (
            "" if self.accumulate == ACCUMULATE[self.dtype] else f", {self.accumulate} accumulator"
        )
        ending = f", {self.scaling} scales" if self.scaling else ""
        ending += f", {self.ending}" if self.ending else ""
        ending += f", {self.groups}" if self.groups else ""
        return f"{self.size} {self.layout}, {self.dtype}{precision}{output}{accumulate}{ending}"


def sharing(recipe: str, lines: int, K: int) -> tuple[int, int]:
    """How many of so many lines, rows of A or columns of B, and terms of K, share a scale."""
    return {
        "tensor": (lines, K), "row": (1, K), "block": (1, BLOCK), "block2d": (BLOCK, BLOCK),
    }[recipe]  # fmt: skip


def parse_size(text: str) -> tuple[int, int, int]:
    """`4096` (a cube) or `8192x28672x4096` (M x N x K)."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*x[1-9]\d*)?", text):
        raise ValueError(f"a size is 4096 or 8192x28672x4096 (M x N x K), not {text!r}")
    sizes = tuple(int(part) for part in text.split("x"))
    return sizes if len(sizes) == 3 else sizes * 3


def parse_layout(text: str) -> str:
    """NN, NT, TN or TT: A's layout, then B's."""
    if not re.fullmatch("[NT][NT]", text):
        raise ValueError(f"a layout is NN, NT, TN or TT (A's, then B's), not {text!r}")
    return text
