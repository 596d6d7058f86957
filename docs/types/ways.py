"""The ways to say an entry of the type table in Triton, and what each can't say."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.experimental.gluon import language as gl

from cuda_reference.types.table import BITS, TABLE, Entry

from . import dot, gluon, mma_sync, wgmma

#: What Triton calls the accumulators' types.
SUMS = {"f16": tl.float16, "f32": tl.float32, "f64": tl.float64, "s32": tl.int32}

_WHOLE_BYTES = "it has no type of less than a byte"
_INT8 = "of integers it multiplies int8 alone"
_TO_NEAREST = "it rounds to nearest"
_SATURATES = "it saturates, as `mma.sync`"
_WRAPS = "it wraps, as `wgmma`"
_COMPILER = "where A is, is the compiler's affair"
_NO_SIGNS = "it has no signs: `-a` is an operation of its own"
_POWERS = "a tensor's sides are powers of two"


@dataclasses.dataclass(frozen=True)
class Way:
    """A kernel of one tile, and what says the product in it.

    `why_not(entry)` is the reason why it can't be said so, or None; `words(entry)` what says it;
    `arguments(entry)` what the kernel takes after the operands and their strides.
    """

    name: str
    kernel: Any
    why_not: Callable[[Entry], str | None]
    words: Callable[[Entry], str]
    arguments: Callable[[Entry], tuple]


def summed(entry: Entry) -> str:
    """The type that the products are added up in."""
    return entry.d if entry.c == entry.d else "f32"


def is_signed(entry: Entry) -> bool:
    """Whether A or B is negated, or both."""
    return min(entry.scale_a, entry.scale_b) < 0


def least_k(entry: Entry) -> int:
    """The shortest K of `tl.dot` and of `mma_v2`."""
    return 32 if BITS[entry.a] == 8 else 16


def _types_why_not(entry: Entry) -> str | None:
    """What neither Triton nor Gluon says: types, modes, and sides of tensors."""
    if BITS[entry.a] < 8:
        return _WHOLE_BYTES
    if "u8" in (entry.a, entry.b):
        return _INT8
    if entry.rounding not in ("", "rn"):
        return _TO_NEAREST
    return _POWERS if entry.shape[1] & entry.shape[1] - 1 else None


# tl.dot


def dot_why_not(entry: Entry) -> str | None:
    wgmma = entry.instruction == "wgmma"
    if entry.a == entry.b == "s8" and entry.satfinite and wgmma:
        return _WRAPS
    # A tile of eight columns becomes `mma.sync` too.
    if entry.a == entry.b == "s8" and not entry.satfinite and not (wgmma and entry.shape[1] > 8):
        return _SATURATES
    if entry.a_in_registers:
        return _COMPILER
    return _NO_SIGNS if is_signed(entry) else _types_why_not(entry)


def _product(entry: Entry, call: str, **more: str) -> str:
    """`call(a, b, c)` with the accumulator's type and precision, and D's type."""
    sums = summed(entry)
    words = ["a", "b"]
    if entry.scale_d:
        words.append("c" if entry.c == sums else "c.to(tl.float32)")
    words += [f"{key}={value}" for key, value in more.items()]
    after = "" if entry.d == sums else ".to(tl.float16)"
    return f"{call}({', '.join(words)}){after}"


def dot_words(entry: Entry) -> str:
    more = {"input_precision": '"tf32"'} if entry.a == "tf32" else {}
    more |= {"out_dtype": "tl.float16"} if summed(entry) == "f16" else {}
    k = least_k(entry)
    return f"`{_product(entry, 'tl.dot', **more)}`" + (f", K filled to {k}" * (entry.shape[2] < k))


def dot_arguments(entry: Entry) -> tuple:
    precision = "tf32" if entry.a == "tf32" else "ieee"
    block_k = max(entry.shape[2], least_k(entry))
    return (*entry.shape, block_k, precision, SUMS[summed(entry)], bool(entry.scale_d))


# Gluon


def mma_v2_why_not(entry: Entry) -> str | None:
    if entry.instruction == "wgmma":
        return "it is `mma.sync`"
    if entry.shape[2] < least_k(entry):
        return f"its K is {least_k(entry)} at least"
    if entry.shape[0] < 16 and entry.instruction == "mma":
        return "it has 16 rows"
    if entry.a == entry.b == "s8" and not entry.satfinite:
        return "it saturates"
    return _types_why_not(entry)


def mma_v2_words(entry: Entry) -> str:
    more = {"input_precision": '"tf32"'} if entry.a == "tf32" else {}
    return f"`{_product(entry, 'mma_v2', **more)}`".replace("tl.", "gl.")


def mma_v2_arguments(entry: Entry) -> tuple:
    layout = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    return (*entry.shape, "tf32" if entry.a == "tf32" else "ieee", SUMS[summed(entry)], layout)


def warpgroup_why_not(entry: Entry) -> str | None:
    if entry.instruction != "wgmma":
        return "it is `wgmma`"
    if is_signed(entry) and not entry.a_in_registers:
        return "it has no signs"
    if entry.swizzle != 32:
        return "the lines of one instruction have 32 bytes, and their swizzle has"
    if entry.a == "s8" and entry.shape[1] > 224:
        return "its int8 has 224 columns at most"
    if entry.b_layout == "row" and entry.shape[1] * BITS[entry.b] // 8 < 32:
        return "the lines of shared memory have 32 bytes at least"
    return "it wraps" if entry.satfinite else _types_why_not(entry)


def warpgroup_words(entry: Entry) -> str:
    more = {"precision": '"tf32"'} if entry.a == "tf32" else {}
    more |= {} if entry.scale_d else {"use_acc": "False"}
    words = _product(dataclasses.replace(entry, scale_d=1), "warpgroup_mma", **more)
    if not entry.a_in_registers:
        return f"`{words}`"
    return f"`{words.replace('(a,', '(-a,') if is_negative(entry) else words}`, A a tensor"


def is_negative(entry: Entry) -> bool:
    """Whether the products count with a minus."""
    return entry.scale_a * entry.scale_b < 0


def warpgroup_arguments(entry: Entry) -> tuple:
    _, n, k = entry.shape
    layout = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, k])
    a, b = (
        gl.NVMMASharedLayout(entry.swizzle, BITS[entry.a], 2, transposed=major == "col")
        for major in (entry.a_layout, entry.b_layout)
    )
    precision = "tf32" if entry.a == "tf32" else "ieee"
    more = (layout, a, b, entry.a_in_registers, is_negative(entry), bool(entry.scale_d))
    return (*entry.shape, precision, SUMS[summed(entry)], *more)


# Inline PTX


def mma_sync_why_not(entry: Entry) -> str | None:
    if entry.instruction == "wgmma":
        return "it is `mma.sync`"
    return None if mma_sync.tile(entry).part in _entries() else "no `mma.sync` has its parts"


@functools.cache
def _entries() -> frozenset[Entry]:
    return frozenset(TABLE)


def mma_sync_words(entry: Entry) -> str:
    tile = mma_sync.tile(entry)
    count = tile.repeats[0] * tile.repeats[1]
    m, n, k = tile.part.shape
    return f"inline `mma.sync` m{m}n{n}k{k}" + (f", {count} of them" if count > 1 else "")


def mma_sync_arguments(entry: Entry) -> tuple:
    tile = mma_sync.tile(entry)
    layouts = (fragment.layout for fragment in tile.fragments)
    return (*layouts, tile.text, tile.constraints)


def wgmma_why_not(entry: Entry) -> str | None:
    if entry.instruction != "wgmma":
        return "it is `wgmma`"
    if entry.a_in_registers:
        return "A is in shared memory"
    if (entry.a_layout, entry.b_layout) != ("row", "col"):
        return "A and B lie along K"
    if entry.swizzle != 32:
        return "its swizzle is of 32 bytes"
    return _POWERS if entry.shape[1] & entry.shape[1] - 1 else None


def wgmma_words(entry: Entry) -> str:
    return "inline `wgmma`"


def wgmma_arguments(entry: Entry) -> tuple:
    n = entry.shape[1]
    texts = wgmma.text(entry), wgmma.constraints(entry)
    return (n, wgmma.rows(entry), wgmma.layout(entry), *texts)


DOT = Way("tl.dot", dot.dot_kernel, dot_why_not, dot_words, dot_arguments)
GLUON = (
    Way("mma_v2", gluon.mma_v2_kernel, mma_v2_why_not, mma_v2_words, mma_v2_arguments),
    Way("warpgroup_mma", gluon.warpgroup_mma_kernel, warpgroup_why_not, warpgroup_words,
        warpgroup_arguments),
    Way("mma.sync", mma_sync.mma_sync_kernel, mma_sync_why_not, mma_sync_words,
        mma_sync_arguments),
    Way("wgmma", wgmma.wgmma_kernel, wgmma_why_not, wgmma_words, wgmma_arguments),
)  # fmt: skip


def gluon_way(entry: Entry) -> Way | None:
    """How Gluon says it: a word of its own, else PTX, else not at all."""
    return next((way for way in GLUON if way.why_not(entry) is None), None)
