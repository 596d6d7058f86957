"""The ways to express an entry of the type table in Triton, each with a kernel of one tile."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl

from cuda_reference.types.fragments import fragment
from cuda_reference.types.table import BITS, DTYPES, TABLE, Entry

from . import dot, gluon, inline

#: What Triton calls the accumulators' types.
SUMS = {"f16": tl.float16, "f32": tl.float32, "f64": tl.float64, "s32": tl.int32}
_ENTRIES = frozenset(TABLE)


@dataclasses.dataclass(frozen=True)
class Way:
    """A kernel of one tile, and how it expresses the product.

    `says(entry)` is whether it can express the entry, `words(entry)` the code that does, and
    `arguments(entry)` what the kernel takes after its operands. `in_registers`: it takes operands
    as a warp's registers.
    """

    name: str
    kernel: Any
    says: Callable[[Entry], bool]
    words: Callable[[Entry], str]
    arguments: Callable[[Entry], tuple]
    in_registers: bool = False


def compiled(way: Way, entry: Entry) -> Any:
    """What Triton compiles for its active driver."""
    types = (_memory_type(type_, way) for type_ in (entry.a, entry.b, entry.c, entry.d))
    warps = 4 if entry.instruction == "wgmma" else 1
    return way.kernel.warmup(*types, *way.arguments(entry), num_warps=warps, grid=(1,))


def _memory_type(type_: str, way: Way) -> torch.dtype:
    """The type of an operand's memory: registers, bytes or elements."""
    if way.in_registers:
        return {"f32": torch.float32, "f64": torch.float64}.get(type_, torch.int32)
    return torch.uint8 if BITS[type_] < 8 else DTYPES[type_]


def _summed(entry: Entry) -> str:
    """The type in which the products are added up."""
    return entry.d if entry.c == entry.d else "f32"


def _is_negative(entry: Entry) -> bool:
    """Whether the products are subtracted."""
    return entry.scale_a * entry.scale_b < 0


def _least_k(entry: Entry) -> int:
    """The shortest K of `tl.dot` and of `mma_v2`."""
    return 32 if BITS[entry.a] == 8 else 16


def _precision(entry: Entry) -> str:
    return "tf32" if entry.a == "tf32" else "ieee"


def _powers_of_two(entry: Entry) -> bool:
    """Whether N is a power of two, as the sides of tensors are; M and K always are."""
    return entry.shape[1] & entry.shape[1] - 1 == 0


# tl.dot


def dot_why_not(entry: Entry) -> str | None:
    """Why `tl.dot` can't express the entry."""
    wgmma = entry.instruction == "wgmma"
    if entry.a == entry.b == "s8" and entry.satfinite and wgmma:
        return "it wraps, like `wgmma`"
    # A tile of eight columns becomes `mma.sync` too.
    if entry.a == entry.b == "s8" and not entry.satfinite and not (wgmma and entry.shape[1] > 8):
        return "it saturates, like `mma.sync`"
    if entry.a_in_registers:
        return "the compiler decides where A is"
    if min(entry.scale_a, entry.scale_b) < 0:
        return "it has no signs; `-a` is a separate operation"
    return _types_why_not(entry)


def _types_why_not(entry: Entry) -> str | None:
    """What neither Triton nor Gluon can express: types, modes, and sides of tensors."""
    if BITS[entry.a] < 8:
        return "it has no type smaller than a byte"
    if "u8" in (entry.a, entry.b):
        return "int8 is the only integer type that it multiplies"
    if entry.rounding not in ("", "rn"):
        return "it rounds to nearest"
    return None if _powers_of_two(entry) else "the sides of a tensor are powers of two"


def _product(entry: Entry, call: str, **more: str) -> str:
    """`call(a, b, c)` with the accumulator's type and precision, and D's type."""
    sums, module = _summed(entry), "tl" if call == "tl.dot" else "gl"
    words = ["a", "b"]
    if entry.scale_d or "use_acc" in more:
        words.append("c" if entry.c == sums else f"c.to({module}.float32)")
    words += [f"{key}={value}" for key, value in more.items() if value]
    after = "" if entry.d == sums else f".to({module}.float16)"
    return f"{call}({', '.join(words)}){after}"


def _tf32(entry: Entry) -> str:
    return '"tf32"' if entry.a == "tf32" else ""


def dot_words(entry: Entry) -> str:
    sums = "tl.float16" if _summed(entry) == "f16" else ""
    words = _product(entry, "tl.dot", input_precision=_tf32(entry), out_dtype=sums)
    k = _least_k(entry)
    return f"`{words}`" + f", K padded to {k}" * (entry.shape[2] < k)


def dot_arguments(entry: Entry) -> tuple:
    block_k = max(entry.shape[2], _least_k(entry))
    sums = SUMS[_summed(entry)]
    return (*entry.shape, block_k, _precision(entry), sums, bool(entry.scale_d))


# Gluon


def mma_v2_says(entry: Entry) -> bool:
    m, _, k = entry.shape
    saturates = not (entry.a == entry.b == "s8" and not entry.satfinite)
    fits = k >= _least_k(entry) and (m >= 16 or entry.instruction == "wmma")
    return entry.instruction != "wgmma" and fits and saturates and _types_why_not(entry) is None


def mma_v2_words(entry: Entry) -> str:
    return f"`{_product(entry, 'mma_v2', input_precision=_tf32(entry))}`"


def mma_v2_arguments(entry: Entry) -> tuple:
    layout = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    return (*entry.shape, _precision(entry), SUMS[_summed(entry)], layout)


def warpgroup_says(entry: Entry) -> bool:
    if entry.instruction != "wgmma" or entry.satfinite or _types_why_not(entry):
        return False
    if min(entry.scale_a, entry.scale_b) < 0 and not entry.a_in_registers:
        return False
    return not (entry.a == "s8" and entry.shape[1] > 224)  # the most columns that it takes of int8


def warpgroup_words(entry: Entry) -> str:
    use_acc = "" if entry.scale_d else "False"
    words = _product(entry, "warpgroup_mma", precision=_tf32(entry), use_acc=use_acc)
    if not entry.a_in_registers:
        return f"`{words}`"
    return f"`{words.replace('(a,', '(-a,') if _is_negative(entry) else words}`, with A a tensor"


def warpgroup_arguments(entry: Entry) -> tuple:
    _, n, k = entry.shape
    layout = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, k])
    a, b = (
        gl.NVMMASharedLayout(32, BITS[entry.a], 2, transposed=turned) for turned in (False, True)
    )
    more = (layout, a, b, entry.a_in_registers, _is_negative(entry), bool(entry.scale_d))
    return (*entry.shape, _precision(entry), SUMS[_summed(entry)], *more)


# mma.sync in PTX, of `mma` and most of `wmma`


def _part(entry: Entry) -> Entry:
    """The `mma.sync` that the tile is made of: itself, or one of 8 columns and 16 rows at most."""
    if entry.instruction == "mma":
        return entry
    m, _, k = entry.shape
    return dataclasses.replace(
        entry, instruction="mma", shape=(min(m, 16), 8, k), a_layout="row", b_layout="col"
    )


def _repeats(entry: Entry, operand: str) -> tuple[int, int]:
    """How many parts of an operand are one below the other, and how many side by side."""
    (m, n, _), (part_m, part_n, _) = entry.shape, _part(entry).shape
    down, across = m // part_m, n // part_n
    return {"a": (down, 1), "b": (1, across)}.get(operand, (down, across))


def mma_sync_says(entry: Entry) -> bool:
    return entry.instruction != "wgmma" and _part(entry) in _ENTRIES


def mma_sync_words(entry: Entry) -> str:
    down, across = _repeats(entry, "d")
    m, n, k = _part(entry).shape
    return f"inline `mma.sync` m{m}n{n}k{k}" + f", {down * across} of them" * (down * across > 1)


def mma_sync_arguments(entry: Entry) -> tuple:
    """Registers, repetitions, the text, and the type of each register in LLVM's letters.

    D's are the first operands, then A's, B's and C's, and are written before all is read.
    """
    part = _part(entry)
    counts = {name: fragment(part, name).registers for name in "dabc"}
    letters = {"f32": "f", "f64": "d"}
    lists, constraints = [], []
    for name, count in counts.items():
        first = len(constraints)
        lists.append("{" + ", ".join(f"${first + i}" for i in range(count)) + "}")
        letter = letters.get(getattr(part, name), "r")
        constraints += [("=&" if name == "d" else "") + letter] * count
    text = f"{part.opcode} {', '.join(lists)};"
    return (*(counts[name] for name in "abcd"), *_repeats(entry, "d"), text, ",".join(constraints))


# wgmma in PTX


def wgmma_says(entry: Entry) -> bool:
    return entry.instruction == "wgmma" and not entry.a_in_registers and _powers_of_two(entry)


def wgmma_arguments(entry: Entry) -> tuple:
    """N, rows of shared memory for A and for B, the text, and its constraints.

    The text goes from fence to wait: nothing may touch D in between. D's registers are C's before.
    A descriptor's upper half: units of 16 bytes from eight rows to the next, and the swizzle.
    """
    n = entry.shape[1]
    rows, upper = max(64, n), 8 * 32 // 16 | 3 << 30
    count, letter = n * BITS[entry.d] // 64, "f" if entry.d == "f32" else "r"
    sums = ", ".join(f"${i}" for i in range(count))
    operands = entry.text.partition(" d, a-desc, b-desc")[2]
    text = f"""{{
        .reg .b32 lower;
        .reg .b64 a, b;
        mov.u32 lower, global_smem;
        bfe.u32 lower, lower, 4, 14;
        or.b32 lower, lower, {1 << 16};
        mov.b64 a, {{lower, {upper}}};
        add.u32 lower, lower, {rows * 32 // 16};
        mov.b64 b, {{lower, {upper}}};
        wgmma.fence.sync.aligned;
        {entry.opcode} {{{sums}}}, a, b{operands};
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        }}"""
    constraints = [f"={letter}"] * count + [str(i) for i in range(count)] + ["~{memory}"]
    return n, rows, text, ",".join(constraints)


DOT = Way(
    "tl.dot", dot.dot_kernel, lambda entry: dot_why_not(entry) is None, dot_words, dot_arguments
)
GLUON = (
    Way("mma_v2", gluon.mma_v2_kernel, mma_v2_says, mma_v2_words, mma_v2_arguments),
    Way(
        "warpgroup_mma", gluon.warpgroup_mma_kernel, warpgroup_says, warpgroup_words,
        warpgroup_arguments,
    ),
    Way(
        "mma.sync", inline.mma_sync_kernel, mma_sync_says, mma_sync_words, mma_sync_arguments,
        in_registers=True,
    ),
    Way("wgmma", inline.wgmma_kernel, wgmma_says, lambda _: "inline `wgmma`", wgmma_arguments),
)  # fmt: skip


def gluon_way(entry: Entry) -> Way | None:
    """How Gluon expresses the entry: with a function of its own, else in PTX, else not at all."""
    return next((way for way in GLUON if way.says(entry)), None)
