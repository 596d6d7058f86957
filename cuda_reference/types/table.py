"""The table: which tensor-core instructions there are, and what each multiplies."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import torch

#: The tensors that hold each PTX type. tf32 is fp32, rounded when it is loaded; b1 is one bit, and
#: s4 and u4 are half a byte, packed when they are loaded.
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "f32": torch.float32,
    "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "u8": torch.uint8,
    "s4": torch.int8,
    "u4": torch.uint8,
    "b1": torch.bool,
    "s32": torch.int32,
}
BITS = {"b1": 1, "s4": 4, "u4": 4} | {
    name: 8 * dtype.itemsize for name, dtype in DTYPES.items() if name not in ("b1", "s4", "u4")
}

#: The file of types/ that holds a type's instructions, where it is not called like the type.
_FILES = {"u8": "s8", "u4": "s4", "e4m3": "fp8", "e5m2": "fp8"}
#: The file of types/ of all wgmma with A in registers or a scale that is not 1.
_MODIFIED = "wgmma_modifiers"
_LAYOUTS = tuple(itertools.product(("row", "col"), repeat=2))
#: Of f64: without a mode it is rn, to nearest.
ROUNDINGS = ("", "rn", "rz", "rm", "rp")
#: N of wgmma: the integer types lack the odd multiples of 8 above 24.
EVERY_N = tuple(range(8, 257, 8))
INTEGER_N = tuple(n for n in EVERY_N if n <= 24 or n % 16 == 0)
#: N of the modified wgmma, which are many and don't differ in it: the ends.
MODIFIED_N = (8, 256)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """D = A B + C by one instruction.

    `shape` is (M, N, K). `a`, `b`, `c` and `d` are PTX types. A layout is "row" or "col": by rows
    or by columns of the operand as the formula has it. For wgmma, which reads A and B from shared
    memory, "row" is K-major for A and N-major for B, and `swizzle` is in bytes.
    `rounding` is of f64 (empty: rn). `op` combines two single bits before the ones are counted.
    Of wgmma alone: A may come from registers, D = scale_a A scale_b B + scale_d C, where scale_a
    and scale_b are 1 or -1 and scale_d is 1 or 0.
    """

    instruction: str
    shape: tuple[int, int, int]
    a_layout: str
    b_layout: str
    a: str
    b: str
    c: str
    d: str
    rounding: str = ""
    satfinite: bool = False
    op: str = ""
    swizzle: int = 0
    a_in_registers: bool = False
    scale_a: int = 1
    scale_b: int = 1
    scale_d: int = 1

    @property
    def opcode(self) -> str:
        """The instruction in PTX, without its operands."""
        shape = "m{}n{}k{}".format(*self.shape)
        popc = [self.op, "popc"] if self.op else []
        limit = "satfinite" * self.satfinite
        layouts, types = [self.a_layout, self.b_layout], self._types
        if self.instruction == "wmma":
            words = ["wmma.mma", *popc, "sync.aligned", *layouts, shape]
            words += [self.rounding, *types, limit]
        elif self.instruction == "mma":
            words = ["mma.sync.aligned", shape, *layouts, limit, self.rounding, *types, *popc]
        else:
            words = ["wgmma.mma_async.sync.aligned", shape, limit, *types, *popc]
        return ".".join(filter(None, words))

    @property
    def text(self) -> str:
        """The instruction in PTX with its operands, as its section of the PTX ISA names them."""
        if self.instruction != "wgmma":
            return f"{self.opcode} d, a, b, c"
        operands = ["d", "a" if self.a_in_registers else "a-desc", "b-desc", str(self.scale_d)]
        if not _is_integer(self.a):
            operands += [str(self.scale_a), str(self.scale_b)]
        if BITS[self.a] == 16:  # the others have one layout
            operands += [] if self.a_in_registers else [str(int(self.a_layout == "col"))]
            operands += [str(int(self.b_layout == "row"))]
        return f"{self.opcode} {', '.join(operands)}"

    @property
    def ptx(self) -> str:
        """What its .cu calls it: its words in PTX, but for those that are the same in all."""
        m, n, k = self.shape
        words = [self.instruction, f"m{m}n{n}k{k}", self.a_layout, self.b_layout]
        words += [self.rounding, *self._types, "satfinite" * self.satfinite]
        words += [self.op, "popc"] if self.op else []
        words += ["registers"] if self.a_in_registers else []
        words += ["minus_a"] if self.scale_a < 0 else []
        words += ["minus_b"] if self.scale_b < 0 else []
        return ".".join(filter(None, words))

    @property
    def name(self) -> str:
        set_ = "" if self.scale_d else ".without_c"
        return self.ptx + set_ + (f".swizzle{self.swizzle}" if self.swizzle else "")

    @property
    def modified(self) -> bool:
        """Whether it is a wgmma with A in registers or a scale that is not 1."""
        scales = (self.scale_a, self.scale_b, self.scale_d)
        return self.a_in_registers or scales != (1, 1, 1)

    @property
    def source(self) -> str:
        """The .cu that holds it, without the suffix and relative to cuda_reference/."""
        if self.modified:
            return f"types/{_MODIFIED}"
        return f"types/{self.instruction}_{_FILES.get(self.a, self.a)}"

    @property
    def function(self) -> str:
        """The kernel of `source` that runs it; of wgmma, one kernel runs several entries."""
        if self.instruction != "wgmma":
            return self.ptx.replace(".", "_")
        shape = "m{}n{}k{}".format(*self.shape)
        sums = self.d if self.d != "s32" and self.a != "tf32" else ""
        words = ["wgmma", shape, sums, _FILES.get(self.a, self.a), "modified" * self.modified]
        return "_".join(filter(None, words))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those of this repository's ("80", "90a") that have the instruction."""
        since_sm_90 = (self.a == "f64" and self.shape[0] == 16) or self.a in ("e4m3", "e5m2")
        return ("90a",) if self.instruction == "wgmma" or since_sm_90 else ("80", "90a")

    @property
    def _types(self) -> tuple[str, ...]:
        """As PTX names them: without A and B in wmma of f16, without C in wgmma."""
        if self.instruction == "wgmma":
            return self.d, self.a, self.b
        if self.instruction == "wmma" and self.a == "f16":
            return self.d, self.c
        return self.d, self.a, self.b, self.c

    def __str__(self) -> str:
        return self.name


def _is_integer(type_: str) -> bool:
    return type_ in ("s8", "u8", "s4", "u4", "b1")


def _entries(instruction: str, shape: tuple[int, int, int], types: str, **more) -> Iterator[Entry]:
    """One entry for each of the four layouts; `types` are those of A, B, C and D."""
    a, b, c, d = types.split()
    for a_layout, b_layout in _LAYOUTS:
        yield Entry(
            instruction=instruction,
            shape=shape,
            a_layout=a_layout,
            b_layout=b_layout,
            a=a,
            b=b,
            c=c,
            d=d,
            **more,
        )


def _row_col(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Operands stored along K: the only layout of many instructions."""
    return (entry for entry in entries if (entry.a_layout, entry.b_layout) == ("row", "col"))


def _wmma() -> Iterator[Entry]:
    for shape in ((16, 16, 16), (8, 32, 16), (32, 8, 16)):
        for c, d in itertools.product(("f16", "f32"), repeat=2):
            yield from _entries("wmma", shape, f"f16 f16 {c} {d}")
        yield from _entries("wmma", shape, "bf16 bf16 f32 f32")
        for a, satfinite in itertools.product(("s8", "u8"), (False, True)):
            yield from _entries("wmma", shape, f"{a} {a} s32 s32", satfinite=satfinite)
    yield from _entries("wmma", (16, 16, 8), "tf32 tf32 f32 f32")
    for rounding in ROUNDINGS:
        yield from _entries("wmma", (8, 8, 4), "f64 f64 f64 f64", rounding=rounding)
    for a, satfinite in itertools.product(("s4", "u4"), (False, True)):
        types = f"{a} {a} s32 s32"
        yield from _row_col(_entries("wmma", (8, 8, 32), types, satfinite=satfinite))
    for op in ("and", "xor"):
        yield from _row_col(_entries("wmma", (8, 8, 128), "b1 b1 s32 s32", op=op))


def _mma() -> Iterator[Entry]:
    for c, d in (("f16", "f16"), ("f16", "f32"), ("f32", "f32")):
        yield from _entries("mma", (8, 8, 4), f"f16 f16 {c} {d}")
    for k in (8, 16):
        for types in ("f16 f16 f16 f16", "f16 f16 f32 f32", "bf16 bf16 f32 f32"):
            yield from _row_col(_entries("mma", (16, 8, k), types))
    for k in (4, 8):
        yield from _row_col(_entries("mma", (16, 8, k), "tf32 tf32 f32 f32"))
    for m, k in ((8, 4), (16, 4), (16, 8), (16, 16)):
        for rounding in ROUNDINGS:
            types = "f64 f64 f64 f64"
            yield from _row_col(_entries("mma", (m, 8, k), types, rounding=rounding))
    for k, d in itertools.product((16, 32), ("f32", "f16")):
        for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
            yield from _row_col(_entries("mma", (16, 8, k), f"{a} {b} {d} {d}"))
    for pair, ks in (("s8 u8", (16, 16, 32)), ("s4 u4", (32, 32, 64))):
        for m, k in zip((8, 16, 16), ks, strict=True):
            for a, b in itertools.product(pair.split(), repeat=2):
                for satfinite in (False, True):
                    types = f"{a} {b} s32 s32"
                    yield from _row_col(_entries("mma", (m, 8, k), types, satfinite=satfinite))
    for m, k in ((8, 128), (16, 128), (16, 256)):
        for op in ("and", "xor"):
            yield from _row_col(_entries("mma", (m, 8, k), "b1 b1 s32 s32", op=op))


def _wgmma() -> Iterator[Entry]:
    for swizzle in (0, 32, 64, 128):
        for n in EVERY_N:
            for types in ("f16 f16 f32 f32", "f16 f16 f16 f16", "bf16 bf16 f32 f32"):
                yield from _entries("wgmma", (64, n, 16), types, swizzle=swizzle)
            types = "tf32 tf32 f32 f32"
            yield from _row_col(_entries("wgmma", (64, n, 8), types, swizzle=swizzle))
            for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
                for d in ("f32", "f16"):
                    types = f"{a} {b} {d} {d}"
                    yield from _row_col(_entries("wgmma", (64, n, 32), types, swizzle=swizzle))
        for n in INTEGER_N:
            for a, b in itertools.product(("s8", "u8"), repeat=2):
                for satfinite in (False, True):
                    more = {"satfinite": satfinite, "swizzle": swizzle}
                    types = f"{a} {b} s32 s32"
                    yield from _row_col(_entries("wgmma", (64, n, 32), types, **more))
            more = {"op": "and", "swizzle": swizzle}
            yield from _row_col(_entries("wgmma", (64, n, 256), "b1 b1 s32 s32", **more))


def _modified() -> Iterator[Entry]:
    """Entries of wgmma that differ from those above in where A is, a sign, or whether C counts."""
    for n in MODIFIED_N:
        for types in ("f16 f16 f32 f32", "f16 f16 f16 f16", "bf16 bf16 f32 f32"):
            for entry in _entries("wgmma", (64, n, 16), types, swizzle=128):
                yield from _modifications(entry)
        one = "tf32 tf32 f32 f32"
        more = [_entries("wgmma", (64, n, 8), one, swizzle=128)]
        for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
            for d in ("f32", "f16"):
                more.append(_entries("wgmma", (64, n, 32), f"{a} {b} {d} {d}", swizzle=128))
        for a, b in itertools.product(("s8", "u8"), repeat=2):
            for satfinite in (False, True):
                limit = {"satfinite": satfinite, "swizzle": 128}
                more.append(_entries("wgmma", (64, n, 32), f"{a} {b} s32 s32", **limit))
        more.append(_entries("wgmma", (64, n, 256), "b1 b1 s32 s32", op="and", swizzle=128))
        for entry in _row_col(itertools.chain(*more)):
            yield from _modifications(entry)


def _modifications(entry: Entry) -> Iterator[Entry]:
    signs = (1,) if _is_integer(entry.a) else (1, -1)
    for registers, a, b, d in itertools.product((False, True), signs, signs, (1, 0)):
        more = {"a_in_registers": registers, "scale_a": a, "scale_b": b, "scale_d": d}
        found = dataclasses.replace(entry, **more)
        if found.modified and not (registers and entry.a_layout == "col"):
            yield found


TABLE = (*_wmma(), *_mma(), *_wgmma(), *_modified())


def held_by(source: str) -> tuple[Entry, ...]:
    """The entries that a .cu can run: those of which it is the source, or which it has as well."""
    if source == "types/wmma_cpp":  # through CUDA C++ what wmma_s8 has in PTX
        shape = (16, 16, 16)
        return tuple(e for e in TABLE if e.source == "types/wmma_s8" and e.shape == shape)
    return tuple(entry for entry in TABLE if entry.source == source)


def find(name: str) -> Entry:
    """The entry called `name`; ValueError if there is none."""
    try:
        return _by_name()[name]
    except KeyError:
        example = TABLE[0].name
        raise ValueError(f"no instruction is called {name!r}; one is {example!r}") from None


@functools.cache
def _by_name() -> dict[str, Entry]:
    return {entry.name: entry for entry in TABLE}
