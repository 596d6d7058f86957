"""Moves tokens to the rows that experts multiply, and back; not a rung, but a step beside two.

Row places[t, j] belongs to token t's j-th expert. The sum over all t and j of
weights[t, j] * dot(rows[places[t, j]], tokens[t]) relates three tensors: its derivative by each is
what the kernel computes from the other two. By the rows, it copies tokens to them; by the tokens,
it combines their rows; by the weights, it computes dot products. Rows from offs[-1] on belong to no
expert: they count as zeros, whatever they or their weights hold. Sums are in fp32, or fp64, and in
a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..runtime import binding
from .device.tile import convert

#: Choices, or experts, of a program that sorts; and choices that it compares them with at a time.
MINE, OTHERS = 32, 256
#: Up to FEW choices, one launch sorts them by comparing all with all; more are sorted in chunks.
FEW, CHUNK = 2048, OTHERS

#: Columns of one program, and its warps: 8 elements per thread, 16 bytes of a 16-bit type.
BLOCK, WARPS = 1024, 4


@triton.jit
def combine_kernel(
    rows, tokens, weights, places, offs, H, GROUPS,
    FIND: tl.constexpr, TOP: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Columns of one token, [T, H]; of weights, [T, TOP], one number. Rows are [T * TOP, H]."""
    # int64: a row's number times H can pass 2**31
    token = tl.program_id(0).to(tl.int64)
    total = tl.load(offs + GROUPS - 1)
    tokens += token * H
    places += token * TOP
    weights += token * TOP
    WIDE: tl.constexpr = tl.float64 if rows.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros([BLOCK], WIDE)
    if FIND == "weights":
        j = tl.program_id(1)
        place = tl.load(places + j).to(tl.int64)
        for start in range(0, H, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            row = tl.load(rows + place * H + cols, mask=cols < H, other=0).to(WIDE)
            acc += row * tl.load(tokens + cols, mask=cols < H, other=0).to(WIDE)
        dot = tl.where(place < total, tl.sum(acc, 0), 0.0)
        tl.store(weights + j, convert(dot, weights.dtype.element_ty))
    else:
        cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        if FIND == "rows":
            token = tl.load(tokens + cols, mask=cols < H, other=0).to(WIDE)
        for j in tl.static_range(TOP):
            place = tl.load(places + j).to(tl.int64)
            row = rows + place * H + cols
            weight = tl.load(weights + j).to(WIDE) if WEIGHTED else 1.0
            if FIND == "rows":
                value = tl.where(place < total, token * weight, 0.0)
                tl.store(row, convert(value, rows.dtype.element_ty), mask=cols < H)
            else:
                value = tl.load(row, mask=cols < H, other=0).to(WIDE) * weight
                acc += tl.where(place < total, value, 0.0)
        if FIND == "tokens":
            tl.store(tokens + cols, convert(acc, tokens.dtype.element_ty), mask=cols < H)


def combine(find: str, rows, tokens, weights, places, offs) -> None:
    """Compute "rows", "tokens" or "weights", as `find` says; see the module.

    All are contiguous, and none is empty. Weights may be None, meaning 1, unless `find` says so.
    """
    (count, top), width = places.shape, rows.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(width))
    values = {"H": width, "GROUPS": len(offs), "FIND": find, "TOP": top}
    values |= {"WEIGHTED": weights is not None, "BLOCK": block}
    there = places if weights is None else weights
    tensors = {"rows": rows, "tokens": tokens, "weights": there, "places": places, "offs": offs}
    grid = count, top if find == "weights" else triton.cdiv(width, block)
    binding.launch_alike(combine_kernel, grid, values, tensors, WARPS)


@triton.jit
def chosen(index, nth, N, E):
    """The `nth` of N choices: E if it is no expert, and more if there is no such choice."""
    expert = tl.load(index + nth, mask=nth < N, other=0)
    expert = tl.where((expert < 0) | (expert >= E), E, expert).to(tl.int32)
    return tl.where(nth < N, expert, E + 1)


@triton.jit
def before(index, own, last, begin, end, N, E, LESSER: tl.constexpr, OTHERS: tl.constexpr):
    """How many choices from `begin` to `end` precede each of `own`.

    Those are equal ones before `last`, and, if `LESSER`, the lesser ones.
    """
    count = tl.zeros(own.shape, tl.int32)
    for first in range(begin, end, OTHERS):
        nth = first + tl.arange(0, OTHERS)
        other = chosen(index, nth, N, E)[None, :]
        stands = (other == own[:, None]) & (nth[None, :] < last[:, None])
        if LESSER:
            stands = stands | (other < own[:, None])
        count += tl.sum(stands.to(tl.int32), 1)
    return count


@triton.jit
def route_kernel(index, places, offs, N, E, MINE: tl.constexpr, OTHERS: tl.constexpr):
    """The sorted places of some of N choices; after those, the ends of some experts."""
    programs = tl.cdiv(N, MINE)
    first = tl.program_id(0) * MINE
    sorts = tl.program_id(0) < programs
    mine = tl.where(sorts, first, first - programs * MINE) + tl.arange(0, MINE)
    own = tl.where(sorts, chosen(index, mine, N, E), mine)
    last = tl.where(sorts, mine, N)
    count = before(index, own, last, 0, N, N, E, True, OTHERS)
    # Triton 3.9's interpreter takes no mask of a scalar and a block.
    tl.store(places + mine, count, mask=mine < tl.where(sorts, N, 0))
    tl.store(offs + mine, count, mask=mine < tl.where(sorts, 0, E))


@triton.jit
def count_kernel(index, counts, N, E, CHUNKS, MINE: tl.constexpr, CHUNK: tl.constexpr):
    """How many choices of a chunk are some experts', and no expert's, which is the last."""
    chunk = tl.program_id(0)
    experts = tl.program_id(1) * MINE + tl.arange(0, MINE)
    begin = chunk * CHUNK
    last = tl.full([MINE], N, tl.int32)
    count = before(index, experts, last, begin, begin + CHUNK, N, E, False, CHUNK)
    tl.store(counts + experts.to(tl.int64) * CHUNKS + chunk, count, mask=experts <= E)


@triton.jit
def place_kernel(index, ends, places, N, E, CHUNKS, MINE: tl.constexpr, CHUNK: tl.constexpr):
    """The places of some choices of a chunk: after those of their expert in earlier chunks."""
    mine = tl.program_id(0) * MINE + tl.arange(0, MINE)
    own = chosen(index, mine, N, E)
    chunk = tl.program_id(0) * MINE // CHUNK
    begin = chunk * CHUNK
    count = before(index, own, mine, begin, begin + CHUNK, N, E, False, CHUNK)
    place = own.to(tl.int64) * CHUNKS + chunk  # experts * chunks can reach 2**31
    count += tl.load(ends + place - 1, mask=(place > 0) & (mine < N), other=0)
    tl.store(places + mine, count, mask=mine < N)


def route(index, places, offs) -> None:
    """Write the place of each choice once all are sorted by expert, and the end of each expert's.

    Equal ones keep their order; those of no expert come last. All are contiguous.
    """
    count, experts = index.numel(), len(offs)
    if count == 0:
        offs.zero_()
        return
    values = {"N": count, "E": experts}
    programs = triton.cdiv(count, MINE)
    if count <= FEW:
        grid = (programs + triton.cdiv(experts, MINE),)
        values |= {"MINE": MINE, "OTHERS": OTHERS}
        tensors = {"index": index, "places": places, "offs": offs}
        binding.launch_alike(route_kernel, grid, values, tensors, WARPS)
        return
    chunks = triton.cdiv(count, CHUNK)
    values |= {"CHUNKS": chunks, "MINE": MINE, "CHUNK": CHUNK}
    counts = offs.new_empty(experts + 1, chunks)
    grid = chunks, triton.cdiv(experts + 1, MINE)
    binding.launch_alike(count_kernel, grid, values, {"index": index, "counts": counts}, WARPS)
    ends = counts.view(-1).cumsum(0, dtype=counts.dtype)
    tensors = {"index": index, "ends": ends, "places": places}
    binding.launch_alike(place_kernel, (programs,), values, tensors, WARPS)
    offs.copy_(ends.view_as(counts)[:-1, -1])
