"""The instructions as the PTX ISA writes them, and those of them that do not exist.

The rows are the tables which `table.TABLE` answers: each text that a row expands to is the `text`
of an entry, or has a reason why there is none. They are written apart from the entries, so that
what one of the two leaves out is found by the other.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

from .table import EVERY_N, INTEGER_N, MODIFIED_N


@dataclasses.dataclass(frozen=True)
class Syntax:
    """Instructions of PTX that differ in words: one of each {these,words}.

    `why_not` says why none of them can be run here; empty if they can. `used_by` names the .cu
    whose PTX holds them, of what is not a multiplication and so has no entry of its own.
    """

    pattern: str
    why_not: str = ""
    used_by: str = ""

    def texts(self) -> tuple[str, ...]:
        """Every instruction that the pattern expands to."""
        literal, *rest = re.split(r"\{([^}]*)\}", self.pattern)
        choices = [words.split(",") for words in rest[::2]]
        return tuple(
            literal + "".join(itertools.chain(*zip(words, rest[1::2], strict=True)))
            for words in itertools.product(*choices)
        )


def _one_of(values) -> str:
    return "{" + ",".join(map(str, values)) + "}"


#: scale-d, imm-scale-a and imm-scale-b that are not all 1.
_SCALED = ("0, {1,-1}, {1,-1}", "1, -1, {1,-1}", "1, 1, -1")
_N, _INTEGER, _ENDS = map(_one_of, (EVERY_N, INTEGER_N, MODIFIED_N))
_WMMA = "wmma.mma.sync.aligned"
_SHAPES = "{m16n16k16,m8n32k16,m32n8k16}"
_LAYOUTS = "{row,col}.{row,col}"
_WGMMA = "wgmma.mma_async.sync.aligned"
_FP8 = "{e4m3.e4m3,e4m3.e5m2,e5m2.e4m3,e5m2.e5m2}"
_INT8 = "{s8.s8,s8.u8,u8.s8,u8.u8}"
_INT4 = "{s4.s4,s4.u4,u4.s4,u4.u4}"
_ROUNDING = "{,.rn,.rz,.rm,.rp}"
_SATFINITE = "{,.satfinite}"

_NO_MIXED_SUMS = "ptxas wants the types of c and d to be equal in this shape"
_F32_STAYS = "ptxas wants d to be f32 where c is"

#: "Warp-level Matrix Multiply-and-Accumulate Instruction: wmma.mma": the 138, and what is gone.
WMMA = (
    Syntax(f"{_WMMA}.{_LAYOUTS}.{_SHAPES}.{{f16,f32}}.{{f16,f32}} d, a, b, c"),
    Syntax(f"{_WMMA}.{_LAYOUTS}.{_SHAPES}.f32.bf16.bf16.f32 d, a, b, c"),
    Syntax(f"{_WMMA}.{_LAYOUTS}.m16n16k8.f32.tf32.tf32.f32 d, a, b, c"),
    Syntax(f"{_WMMA}.{_LAYOUTS}.m8n8k4{_ROUNDING}.f64.f64.f64.f64 d, a, b, c"),
    Syntax(f"{_WMMA}.{_LAYOUTS}.{_SHAPES}.s32.{{s8.s8,u8.u8}}.s32{_SATFINITE} d, a, b, c"),
    Syntax(f"{_WMMA}.row.col.m8n8k32.s32.{{s4.s4,u4.u4}}.s32{_SATFINITE} d, a, b, c"),
    Syntax("wmma.mma.{and,xor}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 d, a, b, c"),
    Syntax(
        f"{_WMMA}.{_LAYOUTS}.{_SHAPES}.{{f16,f32}}.{{f16,f32}}.satfinite d, a, b, c",
        "satfinite of floating-point wmma was removed in PTX ISA 6.5",
    ),
    Syntax(
        f"{_WMMA}.{_LAYOUTS}.{_SHAPES}.s32.{{s8.u8,u8.s8}}.s32{_SATFINITE} d, a, b, c",
        "wmma wants the types of a and b to be equal; mma and wgmma take them mixed",
    ),
    Syntax(
        f"{_WMMA}.{{row.row,col.row,col.col}}.m8n8k32.s32.{{s4.s4,u4.u4}}.s32{_SATFINITE} "
        "d, a, b, c",
        "operands of less than a byte lie along K: a by rows, b by columns",
    ),
    Syntax(
        "wmma.mma.{and,xor}.popc.sync.aligned.{row.row,col.row,col.col}.m8n8k128.s32.b1.b1.s32 "
        "d, a, b, c",
        "operands of less than a byte lie along K: a by rows, b by columns",
    ),
)

#: "Multiply-and-Accumulate Instruction: mma".
MMA = (
    Syntax(
        f"mma.sync.aligned.m8n8k4.{_LAYOUTS}.{{f16.f16.f16.f16,f32.f16.f16.f16,f32.f16.f16.f32}} "
        "d, a, b, c"
    ),
    Syntax(f"mma.sync.aligned.m8n8k4.{_LAYOUTS}.f16.f16.f16.f32 d, a, b, c", _F32_STAYS),
    Syntax(
        "mma.sync.aligned.m16n8{k8,k16}.row.col.{f16.f16.f16.f16,f32.f16.f16.f32} d, a, b, c",
    ),
    Syntax(
        "mma.sync.aligned.m16n8{k8,k16}.row.col.{f16.f16.f16.f32,f32.f16.f16.f16} d, a, b, c",
        _NO_MIXED_SUMS,
    ),
    Syntax("mma.sync.aligned.m16n8{k8,k16}.row.col.f32.bf16.bf16.f32 d, a, b, c"),
    Syntax("mma.sync.aligned.m16n8{k4,k8}.row.col.f32.tf32.tf32.f32 d, a, b, c"),
    Syntax(
        f"mma.sync.aligned.{{m8n8k4,m16n8k4,m16n8k8,m16n8k16}}.row.col{_ROUNDING}"
        ".f64.f64.f64.f64 d, a, b, c"
    ),
    *(
        Syntax(f"mma.sync.aligned.m16n8{{k16,k32}}.row.col.{d}.{_FP8}.{d} d, a, b, c")
        for d in ("f32", "f16")
    ),
    Syntax(
        f"mma.sync.aligned.{{m8n8k16,m16n8k16,m16n8k32}}.row.col{_SATFINITE}.s32.{_INT8}.s32 "
        "d, a, b, c"
    ),
    Syntax(
        f"mma.sync.aligned.{{m8n8k32,m16n8k32,m16n8k64}}.row.col{_SATFINITE}.s32.{_INT4}.s32 "
        "d, a, b, c"
    ),
    Syntax(
        "mma.sync.aligned.{m8n8k128,m16n8k128,m16n8k256}.row.col.s32.b1.b1.s32.{and,xor}.popc "
        "d, a, b, c"
    ),
)

#: "Asynchronous Multiply-and-Accumulate Instruction: wgmma.mma_async". The numbers are scale-d,
#: imm-scale-a, imm-scale-b, imm-trans-a and imm-trans-b. The modified ones are shown at two N.
WGMMA = (
    *(
        Syntax(f"{_WGMMA}.m64n{_N}k16.{types} d, a-desc, b-desc, 1, 1, 1, {{0,1}}, {{0,1}}")
        for types in ("f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16")
    ),
    Syntax(f"{_WGMMA}.m64n{_N}k8.f32.tf32.tf32 d, a-desc, b-desc, 1, 1, 1"),
    Syntax(f"{_WGMMA}.m64n{_N}k32.{{f32,f16}}.{_FP8} d, a-desc, b-desc, 1, 1, 1"),
    Syntax(f"{_WGMMA}.m64n{_INTEGER}k32{_SATFINITE}.s32.{_INT8} d, a-desc, b-desc, 1"),
    Syntax(f"{_WGMMA}.m64n{_INTEGER}k256.s32.b1.b1.and.popc d, a-desc, b-desc, 1"),
    *(
        Syntax(f"{_WGMMA}.m64n{_ENDS}k16.{types} d, {operands}")
        for types in ("f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16")
        for operands in (
            *(f"a-desc, b-desc, {scales}, {{0,1}}, {{0,1}}" for scales in _SCALED),
            "a, b-desc, {0,1}, {1,-1}, {1,-1}, {0,1}",
        )
    ),
    *(
        Syntax(f"{_WGMMA}.m64n{_ENDS}{types} d, {operands}")
        for types in ("k8.f32.tf32.tf32", f"k32.{{f32,f16}}.{_FP8}")
        for operands in (
            *(f"a-desc, b-desc, {scales}" for scales in _SCALED),
            "a, b-desc, {0,1}, {1,-1}, {1,-1}",
        )
    ),
    *(
        Syntax(f"{_WGMMA}.m64n{_ENDS}{types} d, {operands}")
        for types in (f"k32{_SATFINITE}.s32.{_INT8}", "k256.s32.b1.b1.and.popc")
        for operands in ("a-desc, b-desc, 0", "a, b-desc, {0,1}")
    ),
    Syntax(
        f"{_WGMMA}.m64n{_N}k256.s32.b1.b1.xor.popc d, a-desc, b-desc, 1",
        "wgmma has no xor",
    ),
    Syntax(
        f"{_WGMMA}.m64n8k16.f32.{{f16.f16,bf16.bf16}} d, a, b-desc, 1, 1, 1, 1, {{0,1}}",
        "A in registers has no major to choose: it lies by rows",
    ),
    Syntax(
        f"{_WGMMA}.m64n{_N}k64.s32.{{s4.s4,u4.u4}} d, a-desc, b-desc, 1",
        "wgmma has no type of four bits",
    ),
    Syntax(f"{_WGMMA}.m64n{_N}k4.f64.f64.f64 d, a-desc, b-desc, 1, 1, 1", "wgmma has no f64"),
    Syntax(
        f"{_WGMMA}.m64n8{{k8.f32.tf32.tf32,k32.f32.e4m3.e4m3}} d, a-desc, b-desc, 1, 1, 1, 0, 1",
        "only operands of 16 bits have a major to choose: all others lie along K",
    ),
)

_POINTED = "ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.shared.b16"
_LD, _ST = "wmma.load.{a,b}.sync.aligned.{row,col}", "wmma.store.d.sync.aligned.{row,col}"
_LD_C = "wmma.load.c.sync.aligned.{row,col}"
#: What fills and empties fragments: the .cu that uses each.
MEMORY = (
    Syntax(_POINTED, used_by="types/loads"),
    Syntax(f"{_LD}.{_SHAPES}.f16", used_by="types/wmma_f16"),
    Syntax(f"{_LD}.{_SHAPES}.bf16", used_by="types/wmma_bf16"),
    Syntax(f"{_LD}.{_SHAPES}.{{s8,u8}}", used_by="types/wmma_s8"),
    Syntax(f"{_LD}.m16n16k8.tf32", used_by="types/wmma_tf32"),
    Syntax(f"{_LD}.m8n8k4.f64", used_by="types/wmma_f64"),
    Syntax(
        "wmma.load.{a.sync.aligned.row,b.sync.aligned.col}.m8n8k32.{s4,u4}", used_by="types/wmma_s4"
    ),
    Syntax(
        "wmma.load.{a.sync.aligned.row,b.sync.aligned.col}.m8n8k128.b1", used_by="types/wmma_b1"
    ),
    *(
        Syntax(f"{access}.{shapes}", used_by=f"types/wmma_{file}")
        for access in (_LD_C, _ST)
        for file, shapes in (
            ("f16", f"{_SHAPES}.{{f16,f32}}"),
            ("s8", f"{_SHAPES}.s32"),
            ("tf32", "m16n16k8.f32"),
            ("f64", "m8n8k4.f64"),
            ("s4", "m8n8k32.s32"),
            ("b1", "m8n8k128.s32"),
        )
    ),
)

SYNTAX = (*WMMA, *MMA, *WGMMA)
