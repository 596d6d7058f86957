"""One tile by `mma.sync` in inline PTX: for every entry of `mma`, and most of `wmma`.

Each operand is loaded in the layout of its fragment, so that a lane has the instruction's registers
and nothing moves. `wmma.mma` itself can't be said so: the PTX ISA keeps its fragments to itself.
The `mma.sync` that its tile is made of have the same products and sums.
"""

from __future__ import annotations

import dataclasses
import itertools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cuda_reference.types.table import BITS, Entry

from .fragments import Fragment, fragment
from .gluon import places
from .registers import elements, matrix, packed, unpacked


@gluon.jit
def mma_sync_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_dm, stride_dn,
    A: gl.constexpr, B: gl.constexpr, C: gl.constexpr, D: gl.constexpr,
    TEXT: gl.constexpr, CONSTRAINTS: gl.constexpr,
):  # fmt: skip
    """D = A B + C by the instructions of TEXT. A, B, C and D are the fragments' layouts."""
    D_TYPE: gl.constexpr = d_ptr.dtype.element_ty
    a = packed(elements(gl.load(_places(a_ptr, stride_am, stride_ak, A)), A))
    b = packed(elements(gl.load(_places(b_ptr, stride_bk, stride_bn, B)), B))
    c = packed(elements(gl.load(_places(c_ptr, stride_cm, stride_cn, C)), C))
    d = gl.inline_asm_elementwise(
        TEXT, CONSTRAINTS, a + b + c, _registers(D_TYPE, D), is_pure=True, pack=1
    )
    gl.store(_places(d_ptr, stride_dm, stride_dn, D), matrix(unpacked(d, D_TYPE), D))


@gluon.jit
def _places(pointer, stride_row, stride_col, FRAGMENT: gl.constexpr):
    ROWS: gl.constexpr = FRAGMENT.shape[0]
    COLS: gl.constexpr = FRAGMENT.shape[1]
    return places(pointer, stride_row, stride_col, ROWS, COLS, FRAGMENT)


@gluon.constexpr_function
def _registers(dtype, layout):
    """What a lane's registers of a result hold, one each."""
    count = 2 ** len(layout.reg_bases)
    if dtype.primitive_bitwidth == 16:
        return (gl.uint32,) * (count // 2)
    return (dtype,) * count


@dataclasses.dataclass(frozen=True)
class Tile:
    """An entry's tile, covered by the `mma.sync` of `part`: an entry too, of a smaller tile."""

    entry: Entry
    part: Entry

    @property
    def copies(self) -> int:
        """Of the tile that are multiplied at the same time."""
        return fragment(self.part, "a").shape[0] // self.part.shape[0]

    @property
    def repeats(self) -> tuple[int, int]:
        """How many parts stand one below the other, and how many side by side."""
        whole, part = self.entry.shape, self.part.shape
        return whole[0] // part[0], whole[1] // part[1]

    @property
    def fragments(self) -> tuple[Fragment, Fragment, Fragment, Fragment]:
        """Of A, B, C and D of the whole tile."""
        down, across = self.repeats
        a, b, c, d = (fragment(self.part, operand) for operand in "abcd")
        sums = c.repeated(down, across), d.repeated(down, across)
        return a.repeated(down, 1), b.repeated(1, across), *sums

    @property
    def registers(self) -> tuple[int, int, int, int]:
        """A lane's, of A, B, C and D."""
        types = self.part.a, self.part.b, self.part.c, self.part.d
        pairs = zip(self.fragments, types, strict=True)
        return tuple(
            2 ** len(held.elements) * min(32, max(8, BITS[type_])) // 32 for held, type_ in pairs
        )

    @property
    def text(self) -> str:
        """A line per part. The registers of D are the first operands, then A's, B's and C's."""
        down, across = self.repeats
        a, b, c, d = self.registers
        each = d // (down * across), a // down, b // across, c // (down * across)
        first = 0, d, d + a, d + a + b
        lines = []
        for row, col in itertools.product(range(down), range(across)):
            nth = across * row + col, row, col, across * row + col
            lists = (
                "{" + ", ".join(f"${start + count * i + j}" for j in range(count)) + "}"
                for start, count, i in zip(first, each, nth, strict=True)
            )
            lines.append(f"{self.part.opcode} {', '.join(lists)};")
        return "\n".join(lines)

    @property
    def constraints(self) -> str:
        """What each register holds, in LLVM's letters; D's are written before all is read."""
        letters = {"f32": "f", "f64": "d"}
        a, b, c, d = self.registers
        words = ["=&" + letters.get(self.part.d, "r")] * d
        words += [letters.get(self.part.a, "r")] * (a + b) + [letters.get(self.part.c, "r")] * c
        return ",".join(words)


def tile(entry: Entry) -> Tile:
    """How an entry of `wmma` or `mma` is covered.

    The parts of `wmma` have its K, 8 columns, and 16 rows or 8 if it has no more: there is no such
    `mma.sync` for 8 rows of f16 or bf16.
    """
    if entry.instruction == "mma":
        return Tile(entry, entry)
    m, _, k = entry.shape
    part = dataclasses.replace(
        entry, instruction="mma", shape=(min(m, 16), 8, k), a_layout="row", b_layout="col"
    )
    return Tile(entry, part)
