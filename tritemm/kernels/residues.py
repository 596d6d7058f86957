"""Products of fp64 or fp32 by int8 tensor cores, Ozaki scheme II; not a rung, but around one.

Rows of A and columns of B, times powers of two, are rounded to integers so small that a product of
two lines is less than P / 2, by Cauchy and Schwarz. P is a product of coprime moduli up to 256, so
a product is known from its residues, each of which is a product of int8 matrices. They are combined
in fp64 by the Chinese remainder theorem. `make_kernel` makes the int8 matrices, of A and of B's
transpose; `reconstruct_kernel` makes C from the residues of their products.

A line's unit is 1 to 2 times 2**-58 (15 moduli) of its norm, and half of that is the error of each
of its elements. If that may be too much, or with Inf or NaN, a flag is set in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from ..problem import MODULI, RESIDUES, Config, Matrix, Problem
from ..problem.residues import allowed, largest_norm
from ..runtime.binding import Call, launch_alike
from .device.tile import INTERPRETED, batch_offset

#: 1.5 times 2**23 and 2**52: added, they leave the nearest integer, in the low bits.
MAGIC, WIDE_MAGIC = tl.constexpr(12582912.0), tl.constexpr(6755399441055744.0)
#: Number of facts of a line.
FACTS = tl.constexpr(4)
#: Of a line's root mean square: smaller elements count as that much in the bound. Of its largest
#: norm: a line is exact if nothing is rounded or smaller, so that C's rounding is the only one.
LEAST, LOW = tl.constexpr(2.0**-10), tl.constexpr(2.0**-16)
#: The precision of an overlap: means of a line's elements are sums in fp32.
NOISE = 2.0**-22
#: Warps that make residues, 8 or 16 elements a thread; a tile of C, and its warps.
WARPS, TILE, TILE_WARPS = 8, (8, 256), 8


def symmetric(x: int, p: int) -> int:
    """The residue of x in [-p / 2, p / 2)."""
    return (x + p // 2) % p - p // 2


@functools.cache
def reductions() -> tuple:
    """For each modulus p: -p, 1 / p, MAGIC - m, what a sum begins with, and words of byte weights.

    These reduce int64 whose sign bit is turned: byte j weighs 256**j modulo p, 4 to a word. A sum y
    begins in the low bits of m * p, as fp32; m is a multiple of 256.
    """
    made = []
    for p in MODULI:
        each = bytes(symmetric(256**j, p) % 256 for j in range(8))
        words = [int.from_bytes(each[i : i + 4], "little", signed=True) for i in (0, 4)]
        m = -(-(2**23 + 2**18 + 256) // (256 * p)) * 256
        start = 0x4B000000 + m * p - 2**23 + symmetric(-(2**63), p)
        made.append((-float(p), 1 / p, MAGIC.value - m, start, *words))
    return tuple(made)


@functools.cache
def recombination(count: int) -> dict[str, tuple]:
    """High and low parts of each modulus's weight; what `device.residues.residue` makes of 0; high
    and low part of P, and 1 / P. Sums of high are exact."""
    P = math.prod(MODULI[:count])
    unit = 2 ** max(P.bit_length() - 42, 0)
    weights = [symmetric(P // p * pow(P // p, -1, p), P) for p in MODULI[:count]]
    high = [(w + unit // 2) // unit * unit for w in (*weights, P)]
    parts = [(float(h), float(w - h)) for w, h in zip((*weights, P), high, strict=True)]
    zeros = tuple(2**31 % p for p in MODULI[:count])
    return {"WEIGHTS": tuple(parts[:-1]), "ZEROS": zeros, "WHOLE": (*parts[-1], 1 / P)}


@triton.jit
def dot4(word, weights, acc):
    """acc + the four bytes of `word`, without signs, times those of `weights`, with signs."""
    if INTERPRETED:
        for j in tl.static_range(4):
            acc += ((word >> (8 * j)) & 255) * ((((weights >> (8 * j)) & 255) ^ 128) - 128)
    else:
        acc = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [word, weights, acc], tl.int32, True, 1
        )
    return acc


@triton.jit
def reduced(bits, minus_p, inverse, magic):
    """The residue of y, |y| <= 2**18, as int8; `bits` are those of m * p + y as fp32.

    1 / p is off by 2**-24 of itself, so the residue by p / 2 + 0.52 at most: 127, but for 256,
    whose inverse is exact, and where 128 is -128; and for 255, where -128 is 127.
    """
    biased = bits.to(tl.float32, bitcast=True)
    quotient = tl.fma(biased, inverse, magic) - MAGIC
    return tl.fma(quotient, minus_p, biased).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def power(e):
    """2**e in fp64, for |e| <= 1022."""
    return ((e + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["lines", "B1", "M", "stride_0", "stride_1", "stride_line"])
def make_kernel(
    x, out, facts, flag, lines, B1, M, K, stride_0, stride_1, stride_line, stride_k, pitch,
    LARGEST: tl.constexpr, REDUCE: tl.constexpr, COUNT: tl.constexpr, UNIT: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Residues and facts of A of the M lines of a matrix, by steps of B * C along K.

    Lines of all matrices follow one another in `out` [COUNT, lines, pitch] and `facts`
    [FACTS, lines]: (mean sqrt y)**2 and 1 / mean (1 / max(y, LEAST)) of elements' sizes y in root
    mean squares; LARGEST over the norm in units, or 0 if the line is exact and infinity if it isn't
    finite; and its exponent: a whole number is x * 2**exponent. The flag, if there is one, becomes
    0.

    A tile is [B, A, C]: a thread has C neighbours along K and stores their bytes at once. Where K
    isn't contiguous lines are, and threads run along these: the compiler may not know that
    `stride_line`, in UNITs, is 1. x is read twice, the second time from L2 if K is contiguous.
    """
    matrix, pid = tl.program_id(0) // tl.cdiv(M, A), tl.program_id(0) % tl.cdiv(M, A)
    row = pid * A + tl.arange(0, A)
    col = tl.arange(0, B)[:, None, None] * C + tl.arange(0, C)[None, None, :]
    line, inside, rows = matrix * M + row, row < M, row[None, :, None]
    # int64: offsets can pass 2**31
    x += batch_offset(matrix // B1, matrix % B1, stride_0, stride_1)
    x += rows.to(tl.int64) * stride_line * UNIT
    out += (matrix * M + rows).to(tl.int64) * pitch
    small, middle, large = (tl.zeros((B, A), tl.float64),) * 3
    for k in range(0, K, B * C):
        within = (rows < M) & (k + col < K)
        tile = tl.load(x + (k + col).to(tl.int64) * stride_k, within, other=0).to(tl.float64)
        up, down = tile * 2.0**600, tile * 2.0**-600  # so that no sum over- or underflows
        small += tl.sum(up * up, 2)
        middle += tl.sum(tile * tile, 2)
        large += tl.sum(down * down, 2)
    small, middle, large = tl.sum(small, 0), tl.sum(middle, 0), tl.sum(large, 0)
    is_large, is_small = ~(middle < 2.0**900), middle < 2.0**-900
    squares = tl.where(is_large, large, tl.where(is_small, small, middle))
    moved = tl.where(is_large, -600, tl.where(is_small, 600, 0))
    finite, some = squares < float("inf"), squares != 0
    room = LARGEST * LARGEST * 2.0**-100 / tl.where(finite & some, squares, 1.0)  # no overflow
    most = ((room.to(tl.int64, bitcast=True) >> 52).to(tl.int32) - 1023) >> 1
    exponent = tl.where(finite & some, most + 50 + moved, 0)
    factor, again = power(exponent >> 1), power(exponent - (exponent >> 1))
    loss = tl.sqrt(room * power(-2 * most)).to(tl.float32)  # in [1, 2)
    unit = tl.sqrt(tl.cast(K, tl.float32)) * loss / LARGEST

    roots, inverses = (tl.zeros((B, A), tl.float32),) * 2
    rounded = tl.zeros((B, A), tl.int32)
    for k in range(0, K, B * C):
        within = (rows < M) & (k + col < K)
        tile = tl.load(x + (k + col).to(tl.int64) * stride_k, within, other=0).to(tl.float64)
        value = tile * factor[None, :, None] * again[None, :, None]
        size = tl.abs(value)
        whole = tl.where(size < 2.0**52, (size + 2.0**52) - 2.0**52, size)
        lost = whole != size
        size = size.to(tl.float32) * unit[None, :, None]
        lost |= (size > 0) & (size < unit[None, :, None] * (LARGEST * LOW))
        rounded |= tl.max(lost.to(tl.int32), 2)
        root = tl.rsqrt(tl.maximum(size, LEAST))
        roots += tl.sum(size * root, 2)
        inverses += tl.sum(tl.where(within, root * root, 0), 2)
        bits = whole.to(tl.int64)
        bits = tl.where(value < 0, -bits, bits)
        low, high = bits.to(tl.int32), (bits >> 32).to(tl.int32) ^ -2147483648
        to, kept = out + k + col, (rows < M) & (k + col < pitch)
        for i in tl.static_range(COUNT):
            sums = dot4(high, REDUCE[i][5], dot4(low, REDUCE[i][4], REDUCE[i][3]))
            # int64: a plane's offset can pass 2**31
            plane = to + tl.cast(lines, tl.int64) * pitch * i
            tl.store(plane, reduced(sums, REDUCE[i][0], REDUCE[i][1], REDUCE[i][2]), kept)
    count, rounded = tl.cast(K, tl.float32), tl.max(rounded, 0)
    root, inverse = tl.sum(roots, 0) / count, count / tl.sum(inverses, 0)
    tl.store(facts + line, tl.where(some, root * root, float("inf")), inside)
    tl.store(facts + lines + line, tl.where(some, inverse, float("inf")), inside)
    exact = (rounded == 0) & (exponent >= 0)  # else elements may have become 0
    unit = tl.where(finite, tl.where(exact, 0, loss), float("inf"))
    tl.store(facts + 2 * lines + line, unit, inside)
    tl.store(facts + 3 * lines + line, exponent.to(tl.float32), inside)
    if tl.program_id(0) == 0:
        tl.store(flag, 0)


#: What the kernel is not specialised on: compiled for one shape, it serves nearly all.
_SIZES = ["B0", "B1", "M", "lines_a", "lines_b", "of_a", "of_b", "stride_0", "stride_1"]


@triton.jit(do_not_specialize=_SIZES)
def reconstruct_kernel(
    planes, facts_a, facts_b, flag, c, B0, B1, M, N, pitch, lines_a, lines_b, of_a, of_b,
    stride_0, stride_1, stride_m, stride_n,
    WEIGHTS: tl.constexpr, ZEROS: tl.constexpr, WHOLE: tl.constexpr, ENOUGH: tl.constexpr,
    COUNT: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """A tile [A, B] of C, from residues [COUNT, B0, B1, M, pitch] of the products.

    By the facts of a row and a column, sum |a| |b| is at least `overlap` times their norms; ENOUGH
    is the least acceptable. `of_a` and `of_b`: lines from one matrix of the batch to the next.
    """
    across, tiles = tl.cdiv(N, B), tl.cdiv(N, B) * tl.cdiv(M, A)
    matrix, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row, col = tile // across * A + tl.arange(0, A), tile % across * B + tl.arange(0, B)
    inside = (row < M)[:, None] & (col < N)[None, :]
    kept = (row < M)[:, None] & (col < pitch)[None, :]
    # int64: offsets can pass 2**31
    planes += (tl.cast(matrix, tl.int64) * M + row)[:, None] * pitch + col[None, :]
    high = tl.zeros((A, B), tl.float64)
    low = high
    for i in tl.static_range(COUNT):
        r = tl.load(planes + tl.cast(B0 * B1, tl.int64) * M * pitch * i, kept, other=0)
        r = (r.to(tl.int32) - ZEROS[i]).to(tl.float64)
        high, low = high + r * WEIGHTS[i][0], low + r * WEIGHTS[i][1]
    times = (high * WHOLE[2] + WIDE_MAGIC) - WIDE_MAGIC
    value = (high - times * WHOLE[0]) + (low - times * WHOLE[1])
    a, b = (), ()
    for i in tl.static_range(FACTS):
        at_a = facts_a + i * lines_a + matrix * of_a + row
        at_b = facts_b + i * lines_b + matrix * of_b + col
        a += (tl.load(at_a, row < M, other=0)[:, None],)
        b += (tl.load(at_b, col < N, other=0)[None, :],)
    overlap = tl.maximum(tl.maximum(a[0] * b[1], b[0] * a[1]) - LEAST, 0)
    loss = a[2] + b[2]
    unsafe = inside & ~((loss * ENOUGH <= overlap) & (loss < float("inf")))
    tl.store(flag, 1, tl.max(tl.max(unsafe.to(tl.int32), 1), 0) > 0)
    shift = -(a[3] + b[3]).to(tl.int32)
    # Twice, for it can pass the range of powers; past 2000, what isn't 0 is Inf.
    first = tl.minimum(tl.maximum(shift, -1000), 1000)
    second = tl.minimum(tl.maximum(shift - first, -1000), 1000)
    value = value * power(first) * power(second)
    c += batch_offset(matrix // B1, matrix % B1, stride_0, stride_1)
    c += row.to(tl.int64)[:, None] * stride_m + col.to(tl.int64)[None, :] * stride_n
    tl.store(c, value.to(c.dtype.element_ty), inside)


def multiply(problem: Problem, a, b, c, product: Callable) -> tuple[torch.Tensor, list]:
    """c = a @ b, all as `problem` describes them; and a flag, int32, set if that isn't good enough.

    `product(left, right, planes)` writes the residues of the products. Also returned: what repeats
    the launches, if that is possible, in the order of `places`.
    """
    made = [torch.empty(size, dtype=dtype, device=c.device) for size, dtype in _buffers(problem)]
    left, right, facts_a, facts_b, planes, flag = made
    view, count = problem.packed("ab"), RESIDUES[problem.precision]
    calls = [
        _make(problem, problem.a, view.a, {"x": a, "out": left, "facts": facts_a, "flag": flag}),
        _make(problem, problem.b.transposed(), view.b.transposed(),
              {"x": b, "out": right, "facts": facts_b, "flag": flag}),
        product(left, right, planes),
    ]  # fmt: skip
    tensors = {"planes": planes, "facts_a": facts_a, "facts_b": facts_b, "flag": flag, "c": c}
    (outer, inner), (M, N) = problem.batches, (problem.M, problem.N)
    strides = zip(("stride_0", "stride_1", "stride_m", "stride_n"), problem.c.strides, strict=True)
    values = {
        "B0": outer, "B1": inner, "M": M, "N": N, "pitch": view.c.strides[2],
        "lines_a": len(facts_a) // FACTS.value, "lines_b": len(facts_b) // FACTS.value,
        "of_a": M * problem.a.apart, "of_b": N * problem.b.apart, **dict(strides),
        **recombination(count), "COUNT": count, "A": TILE[0], "B": TILE[1],
        "ENOUGH": max(0.5 / (largest_norm(count) * allowed(count, problem.a.dtype)), NOISE),
    }  # fmt: skip
    grid = (problem.batch * triton.cdiv(M, TILE[0]) * triton.cdiv(N, TILE[1]),)
    calls.append(launch_alike(reconstruct_kernel, grid, values, tensors, TILE_WARPS))
    return flag, calls


def why_not(problem: Problem, config: Config) -> str | None:
    """Why a config that copies operands can't make residues of them, or None."""
    if not (problem.by_residues and config.PACK):
        return None
    if config.PACK != "ab" or config.SWAP:
        return 'residues are made of both operands, in their order: use PACK="ab", SWAP=False'
    return problem.why_no_residues()


def places(work: int) -> tuple[tuple[int, ...], ...]:
    """Where the launches of `multiply`, and the one after the flag, find their operands: among a,
    b and c, the buffers of `made_bytes`, and, from `work` on, the product's own."""
    a, b, c, left, right, facts_a, facts_b, planes, flag = range(9)
    product = left, right, planes, work, work + 1
    made = (a, left, facts_a, flag), (b, right, facts_b, flag)
    return *made, product, (planes, facts_a, facts_b, flag, c), (a, b, c, flag)


def made_bytes(problem: Problem) -> list[int]:
    """Bytes of the intermediate buffers, in order."""
    return [size * dtype.itemsize for size, dtype in _buffers(problem)]


def _buffers(problem: Problem) -> list[tuple[int, torch.dtype]]:
    """Elements and types of the residues of A and B, of facts of their lines, of the residues of
    products, and of the flag."""
    view, count = problem.packed("ab"), RESIDUES[problem.precision]
    (a, _, pitch_a, _), (b, *_, pitch_b), (c, *_) = (m.strides for m in (view.a, view.b, view.c))
    return [
        (count * a, torch.int8),  # those of one modulus, for all matrices, are contiguous
        (count * b, torch.int8),
        (FACTS.value * a // pitch_a, torch.float32),
        (FACTS.value * b // pitch_b, torch.float32),
        (count * c, torch.uint8),
        (4, torch.int32),
    ]


def _make(problem: Problem, of: Matrix, packed: Matrix, tensors: dict) -> Call | None:
    """Make residues, as `packed`, and facts of the rows of a matrix, at the address of x."""
    M, K = of.rows, of.cols
    count, pitch = RESIDUES[problem.precision], packed.strides[2]
    lines = packed.strides[0] // pitch
    stride_0, stride_1, along_lines, along_k = of.strides
    wide = along_k == 1  # a thread has 8 neighbours along K, else 16
    across = max(2, min(32 * WARPS, triton.next_power_of_2(K) // 8))
    A, B, C = (32 * WARPS // across, across, 8) if wide else (16, 2 * WARPS, 16)
    unit = 4 if wide and along_lines % 4 == 0 else 1
    values = {
        "lines": lines, "B1": problem.batches[1], "M": M, "K": K, "stride_0": stride_0,
        "stride_1": stride_1, "stride_line": along_lines // unit, "stride_k": along_k,
        "pitch": pitch, "LARGEST": largest_norm(count),
        "REDUCE": reductions()[:count], "COUNT": count, "UNIT": unit, "A": A, "B": B, "C": C,
    }  # fmt: skip
    grid = (lines // M * triton.cdiv(M, A),)
    return launch_alike(make_kernel, grid, values, tensors, WARPS)
