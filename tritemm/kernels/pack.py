"""Copies operands to lines that TMA can read; not a rung, but a step before one.

If a line of the source is a line of the copy, bytes are moved as 8-byte words, whatever the type: a
word of the copy is cut out of two adjacent aligned words of the source. A lane then has 8 bytes in
flight where a line of 16-bit elements at an odd address would allow 2, and the second word of one
lane is the first of the next, found in L1. A warp's loads and stores are 256 contiguous bytes. If
the copy's lines run across the source's, tiles are transposed.

Or fp32 operands are split into planes of bf16, one after another along K.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl

from ..arch.limits import programs_why_not
from ..arch.sm80 import MOST_PROGRAMS
from ..arch.sm90 import launches_early
from ..problem import PLANE_FACTOR, PLANES, Matrix, Problem
from ..runtime import binding
from .device.tile import batch_offset, convert, follow, widen
from .device.words import WORD, cut_words

#: Bytes that divide distances in a copy, and the unit of these distances (`Matrix.packed`).
UNIT = tl.constexpr(32)
#: If this many bytes divide a source's pitch, a lane loads as many.
VECTOR = tl.constexpr(16)

#: Words that one program copies, and its warps: 4 words, 8 loads, in flight per thread.
TILE, WARPS = 1024, 8
#: Words of a line that one program copies: the widest that leaves few lanes idle is used.
WIDTHS = (256, 64, 32, 8)
#: Elements along each edge of a tile that is transposed, by the bytes of an element.
EDGE = {1: 128, 2: 64, 4: 64, 8: 32}
#: The most idle lanes per busy lane that count as few.
IDLE = 1 / 4
COUNT, FACTOR = tl.constexpr(PLANES), tl.constexpr(PLANE_FACTOR)
#: Bytes of the flag, of which 4 are used.
FLAG = 16


@triton.jit
def copy_lines(src_ptr, dst_ptr, pid, lines, length, src_pitch, dst_pitch,
               SIZE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr):  # fmt: skip
    """Tile `pid` of a copy that keeps its lines; `src_pitch` in elements, `dst_pitch` in words."""
    # int64: lines, and lines * pitch, can pass 2**31 bytes
    end = length.to(tl.int64) * SIZE  # bytes
    tiles = tl.cdiv(end, WORD * WIDTH).to(tl.int32)
    line = (pid // tiles * HEIGHT + tl.arange(0, HEIGHT))[:, None]  # [HEIGHT, 1]
    word = (pid % tiles * WIDTH + tl.arange(0, WIDTH))[None, :]  # [1, WIDTH]

    start = line.to(tl.int64) * src_pitch * SIZE
    inside = (line < lines) & (word.to(tl.int64) * WORD < end)
    value = cut_words(src_ptr, start, word, end, inside, True, False)

    target = dst_ptr.to(tl.pointer_type(tl.uint64)) + line.to(tl.int64) * dst_pitch + word
    tl.store(target, value, mask=inside)


@triton.jit
def turn_lines(src_ptr, dst_ptr, pid, lines, length, src_line, src_element, dst_pitch,
               SIZE: tl.constexpr, EDGE: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """Tile `pid` of a copy with lines across the source's, or of a source without lines.

    Threads run along the source's lines to load, and along the copy's to store. The source's
    strides are in elements, `dst_pitch` is in units of UNIT bytes. Vectors are moved whole: a
    store fills the gap between two lines of the copy, a load may read what follows a line.
    """
    tiles = tl.cdiv(length, EDGE)
    line = (pid // tiles * EDGE + tl.arange(0, EDGE))[:, None]  # [EDGE, 1]
    element = (pid % tiles * EDGE + tl.arange(0, EDGE))[None, :]  # [1, EDGE]
    vector: tl.constexpr = VECTOR // SIZE
    readable = tl.cdiv(lines, vector) * vector if WIDE else lines
    writable = tl.cdiv(length, vector) * vector

    # int64: lines * pitch can pass 2**31 elements
    source = src_ptr + line.to(tl.int64) * src_line + element.to(tl.int64) * src_element
    target = dst_ptr + line.to(tl.int64) * (dst_pitch * (UNIT // SIZE)) + element
    tile = tl.load(source, mask=(line < readable) & (element < length))
    tl.store(target, tile, mask=(line < lines) & (element < writable))


@triton.jit
def split_lines(src_ptr, dst_ptr, pid, lines, length, src_line, src_element, dst_pitch, plane,
                EDGE: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Tile `pid` of an fp32 matrix, times FACTOR, as planes of bf16; with zeros to their end.

    Each is the nearest to what the previous ones leave, which is exact; an infinity leaves NaN.
    `dst_pitch` and the distance of two planes are in units of UNIT bytes. Vectors are loaded whole,
    and may hold what follows a line.
    """
    unit: tl.constexpr = UNIT // 2
    vector: tl.constexpr = VECTOR // 4
    columns = widen(tl.minimum(plane, dst_pitch), WIDE) * unit  # planes are in lines, or are lines
    rows = tl.where(plane < dst_pitch, lines, plane // dst_pitch)
    tiles = tl.cdiv(columns, EDGE)
    line = (pid // tiles * EDGE + tl.arange(0, EDGE))[:, None]  # [EDGE, 1]
    element = (pid % tiles * EDGE + tl.arange(0, EDGE))[None, :]  # [1, EDGE]
    # int64: lines * pitch can pass 2**31 elements
    step = 1 if ALIGNED else src_element
    source = src_ptr + line.to(tl.int64) * src_line + element.to(tl.int64) * step
    target = dst_ptr + line.to(tl.int64) * (dst_pitch * unit) + element
    readable = tl.cdiv(length, vector) * vector if ALIGNED else length
    rest = tl.load(source, mask=(line < lines) & (element < readable), other=0.0)
    rest = tl.where(element < length, rest, 0.0) * FACTOR
    inside = (line < rows) & (element < columns)
    for i in tl.static_range(COUNT):
        part = convert(rest, tl.bfloat16)
        tl.store(target + tl.cast(plane, tl.int64) * (i * unit), part, mask=inside)
        rest -= part.to(tl.float32)


@triton.jit
def pack_matrix(src_ptr, dst_ptr, pid, sizes, WAY: tl.constexpr, SIZE: tl.constexpr,
                EDGE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
                WIDE: tl.constexpr):  # fmt: skip
    """Tile `pid` of one matrix with all its batches; its `sizes` are `_SIZES`."""
    (tiles, lines, length, B1, src_0, src_1, dst_batch, src_line, src_element, dst_pitch,
     plane) = sizes  # fmt: skip
    batch = pid // tiles
    pid = widen(pid % tiles, WIDE)
    lines, length = widen(lines, WIDE), widen(length, WIDE)
    src_element, dst_pitch = widen(src_element, WIDE), widen(dst_pitch, WIDE)
    # int64: batches can be 2**31 elements apart
    to: tl.constexpr = dst_ptr.dtype.element_ty
    dst_ptr += tl.cast(batch, tl.int64) * dst_batch * (UNIT * 8 // to.primitive_bitwidth)
    if WAY == "turn wide" or WAY == "split wide":
        # Units of VECTOR bytes in the arguments are what tells the compiler the alignment.
        src_0 = src_0.to(tl.int64) * (VECTOR // SIZE)
        src_1 = src_1.to(tl.int64) * (VECTOR // SIZE)
        if WAY == "turn wide":
            src_element *= VECTOR // SIZE
        else:
            src_line = src_line.to(tl.int64) * (VECTOR // SIZE)
    src_ptr += batch_offset(batch // B1, batch % B1, src_0, src_1)
    if WAY == "copy":
        copy_lines(src_ptr, dst_ptr, pid, lines, length, src_line, dst_pitch,
                   SIZE, WIDTH, HEIGHT)  # fmt: skip
    elif WAY == "split wide" or WAY == "split":
        split_lines(src_ptr, dst_ptr, pid, lines, length, src_line, src_element, dst_pitch, plane,
                    EDGE, WIDE, WAY == "split wide")  # fmt: skip
    elif WAY == "gather":
        turn_lines(src_ptr, dst_ptr, pid, lines, length, src_line, src_element, dst_pitch,
                   SIZE, EDGE, False)  # fmt: skip
    else:
        turn_lines(src_ptr, dst_ptr, pid, lines, length, 1, src_element, dst_pitch,
                   SIZE, EDGE, WAY == "turn wide")  # fmt: skip


# Nothing is specialised on the sizes: a kernel compiled for one shape serves them all.
_SIZES = ("tiles", "lines", "length", "B1", "src_0", "src_1", "dst_batch", "src_line",
          "src_element", "dst_pitch", "plane")  # fmt: skip
_OPEN = ["a_total", *(f"{name}_{size}" for name in "ab" for size in _SIZES)]


@triton.jit(do_not_specialize=_OPEN)
def pack_kernel(
    a_src, a_dst, b_src, b_dst, flag_ptr, a_total,
    a_tiles, a_lines, a_length, a_B1, a_src_0, a_src_1, a_dst_batch,
    a_src_line, a_src_element, a_dst_pitch, a_plane,
    b_tiles, b_lines, b_length, b_B1, b_src_0, b_src_1, b_dst_batch,
    b_src_line, b_src_element, b_dst_pitch, b_plane,
    A_WAY: tl.constexpr, B_WAY: tl.constexpr, SIZE: tl.constexpr,
    EDGE: tl.constexpr, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The first `a_total` programs copy A, the others B; an empty WAY copies nothing.

    The flag, if there is one, becomes 0.
    """
    follow(PDL)
    pid = tl.program_id(0)
    if flag_ptr is not None and pid == 0:
        tl.store(flag_ptr, 0)
    a_sizes = (a_tiles, a_lines, a_length, a_B1, a_src_0, a_src_1, a_dst_batch,
               a_src_line, a_src_element, a_dst_pitch, a_plane)  # fmt: skip
    b_sizes = (b_tiles, b_lines, b_length, b_B1, b_src_0, b_src_1, b_dst_batch,
               b_src_line, b_src_element, b_dst_pitch, b_plane)  # fmt: skip
    if B_WAY == "":
        pack_matrix(a_src, a_dst, pid, a_sizes, A_WAY, SIZE, EDGE, WIDTH, HEIGHT, WIDE)
    elif A_WAY == "":
        pack_matrix(b_src, b_dst, pid, b_sizes, B_WAY, SIZE, EDGE, WIDTH, HEIGHT, WIDE)
    elif pid < a_total:
        pack_matrix(a_src, a_dst, pid, a_sizes, A_WAY, SIZE, EDGE, WIDTH, HEIGHT, WIDE)
    else:
        pack_matrix(b_src, b_dst, pid - a_total, b_sizes, B_WAY, SIZE, EDGE, WIDTH, HEIGHT, WIDE)


@dataclasses.dataclass(frozen=True)
class Copy:
    """How one operand is copied: rows of `source` to rows of `target`, which may be its planes.

    `way`: "copy" keeps the source's lines; "turn" makes lines across the source's, "turn wide" if
    those are aligned to 16 bytes; "gather" reads a source without lines; "split" makes planes,
    "split wide" from lines that are aligned to 16 bytes.
    """

    way: str
    source: Matrix
    target: Matrix
    batches: tuple[int, int]  # those that are not broadcast

    @staticmethod
    def of(source: Matrix, target: Matrix, batches: tuple[int, int]) -> Copy:
        """From `source` to `target`, which is `source.packed(...)`."""
        if target.strides[3] != 1:
            source, target = source.transposed(), target.transposed()
        *steps, line, element = source.strides
        splits, in_lines = source.dtype != target.dtype, element == 1 or source.cols == 1
        read = line if splits else element  # the distance between reads by vectors
        distances = (step * source.dtype.itemsize for step in (*steps, read))
        aligned = source.aligned and not any(step % VECTOR.value for step in distances)
        if splits:
            way = "split wide" if aligned and in_lines else "split"
        elif in_lines:
            way = "copy"
        elif line == 1:
            way = "turn wide" if aligned else "turn"
        else:
            way = "gather"
        distinct = [n if step else 1 for n, step in zip(batches, steps, strict=True)]
        return Copy(way, source, target, tuple(distinct))

    @property
    def elements(self) -> int:
        """Elements of the copy including the gaps between its lines."""
        return math.prod(self.batches) * self.target.rows * self.target.strides[2]

    @property
    def plane(self) -> int:
        """Elements from one plane to the next: planes are within lines, or are lines."""
        lines = 1 if self.target.rows == self.source.rows else self.target.rows
        return lines * self.target.strides[2] // PLANES

    @property
    def wide(self) -> bool:
        """Whether an index or a distance can pass 2**31; half of that, for tiles reach past it."""
        return max(self.source.rows, self.source.cols, abs(self.source.strides[3])) >= 2**30

    @property
    def words(self) -> int:
        """Words of a line."""
        return triton.cdiv(self.source.cols * self.source.dtype.itemsize, WORD.value)

    def idle(self, width: int) -> int:
        """Words of the tiles past the ends of the lines."""
        return (triton.cdiv(self.words, width) * width - self.words) * self.source.rows

    def tiles(self, width: int) -> int:
        """Programs of one batch."""
        lines, length = self.source.rows, self.source.cols
        if self.way == "copy":
            return triton.cdiv(lines, TILE // width) * triton.cdiv(self.words, width)
        edge, pitch = EDGE[self.source.dtype.itemsize], self.target.strides[2]
        if self.way.startswith("split"):
            lines, length = max(lines, self.plane // pitch), min(self.plane, pitch)
        return triton.cdiv(lines, edge) * triton.cdiv(length, edge)

    def sizes(self, width: int) -> dict[str, int]:
        """What `pack_matrix` takes, in its units."""
        src_0, src_1, src_line, src_element = self.source.strides
        if self.way.endswith("wide"):
            vector = VECTOR.value // self.source.dtype.itemsize
            src_0, src_1 = src_0 // vector, src_1 // vector
            if self.way == "turn wide":
                src_element //= vector
            else:
                src_line //= vector
        size, pitch = self.target.dtype.itemsize, self.target.strides[2]
        values = (
            self.tiles(width), self.source.rows, self.source.cols, self.batches[1], src_0, src_1,
            self.target.rows * pitch * size // UNIT.value, src_line, src_element,
            pitch * size // (WORD if self.way == "copy" else UNIT).value,
            self.plane * size // UNIT.value,
        )  # fmt: skip
        return dict(zip(_SIZES, values, strict=True))


@dataclasses.dataclass(frozen=True)
class Plan:
    """One launch: the grid, the fixed arguments, and each copy with its tensor's geometry."""

    grid: tuple[int]
    args: dict[str, Any]
    copies: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]]


@functools.lru_cache(maxsize=4096)
def _plan(problem: Problem, operands: str) -> Plan:
    target = problem.packed(operands)
    copies, tensors = {}, {}
    for name in operands:
        matrix = getattr(target, name)
        copy = copies[name] = Copy.of(getattr(problem, name), matrix, problem.batches)
        skip = 0 if problem.batch > 1 else 2
        shape = (*problem.batches, matrix.rows, matrix.cols)
        tensors[name] = (copy.elements, shape[skip:], matrix.strides[skip:])
    width = _width(copies.values())
    programs = {n: c.tiles(width) * math.prod(c.batches) for n, c in copies.items()}
    args: dict[str, Any] = {"a_total": programs.get("a", 0)}
    for name in "ab":
        sizes = copies[name].sizes(width) if name in copies else dict.fromkeys(_SIZES, 0)
        args |= {f"{name}_{key}": value for key, value in sizes.items()}
        args[f"{name.upper()}_WAY"] = copies[name].way if name in copies else ""
    size = problem.itemsize
    args |= {"SIZE": size, "EDGE": EDGE[size], "WIDTH": width, "HEIGHT": TILE // width}
    args["WIDE"] = any(copy.wide for copy in copies.values())
    args["PDL"] = launches_early(problem.device)
    if not problem.is_split(operands):
        args["flag_ptr"] = None
    return Plan((sum(programs.values()),), args, tensors)


def _width(copies: Iterable[Copy]) -> int:
    """The widest tile that leaves few lanes idle, or the one that leaves the fewest."""
    kept = [copy for copy in copies if copy.way == "copy"]
    busy = sum(copy.words * copy.source.rows for copy in kept)
    idle = {width: sum(copy.idle(width) for copy in kept) for width in WIDTHS}
    few = [width for width in WIDTHS if idle[width] <= IDLE * busy]
    return few[0] if few else min(WIDTHS, key=idle.get)


def copied_bytes(problem: Problem, operands: str) -> list[int]:
    """Bytes of the copy of each of the `operands` ("", "a", "b" or "ab"), and of the flag."""
    copies = _plan(problem, operands).copies if operands else {}
    size = problem.packed(operands).itemsize
    flag = [FLAG] if problem.is_split(operands) else []
    return [size * copies[name][0] for name in operands] + flag


def why_not(problem: Problem, operands: str) -> str | None:
    """Why the `operands` can't be copied in one launch, or None."""
    copied = sum(getattr(problem, name).rows * getattr(problem, name).cols for name in operands)
    if problem.batch * copied <= MOST_PROGRAMS:
        return None  # decided at once: a program copies one element or more
    (programs,) = _plan(problem, operands).grid
    reason = programs_why_not(programs)
    return reason and f"to copy {' and '.join(operands)}, {reason}"


def pack(
    problem: Problem, operands: str, a, b
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, binding.Call | None]:
    """`a` and `b`, with the `operands` ("a", "b" or "ab") copied in one launch.

    Copies are stored as `problem.packed(operands)` describes them, [rows, columns], preceded by two
    batch dimensions if the problem has batches. The gap between the end of a line and the next line
    is not initialised. The other operand is returned unchanged. Copies are new at every call, so
    they are safe across streams and in CUDA graphs. With planes comes a flag, int32, which is 0.
    Last comes what repeats the launch, or None, on the addresses of a, its copy, b, its copy and
    the flag; an operand that is not copied is passed twice.
    """
    plan, target = _plan(problem, operands), problem.packed(operands)
    source = {"a": a, "b": b}
    result = dict(source)
    for name, (elements, shape, strides) in plan.copies.items():
        dtype = getattr(target, name).dtype
        flat = torch.empty(elements, dtype=dtype, device=source[name].device)
        result[name] = flat.as_strided(shape, strides)
    tensors = {"a_src": a, "a_dst": result["a"], "b_src": b, "b_dst": result["b"]}
    flag = None
    if problem.is_split(operands):
        flag = tensors["flag_ptr"] = torch.empty(FLAG // 4, dtype=torch.int32, device=a.device)
    options = {"num_warps": WARPS}
    if launches_early(problem.device):
        options["launch_pdl"] = True
    key = (problem, operands)
    call = binding.launch(key, pack_kernel, plan.grid, plan.args, options, tensors)
    return result["a"], result["b"], flag, call
