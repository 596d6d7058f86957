"""Who holds which element of A, B, C and D: index arithmetic, with no GPU.

A fragment is what the threads hold of an operand, element by element in the order of their
registers. Threads come in groups of four: thread = 4 g + t, within a warp. A word is a register of
32 bits, of 64 for f64, and a step is what the four threads of a group hold of a line along K.

- Of A, thread 4 g + t holds word t of row g of each step; where there are rows g + 8, of these too,
  before the next step. Then follow the next 16 rows.
- Of B, it holds word t of column g of each step. Then follow the next 8 columns.
- Of C and D, it holds columns 2 t and 2 t + 1 of row g, g + 8, ... Then follow the next 8 columns.

That is mma's fragment, by the PTX ISA ("Matrix Fragments for mma"), and wgmma's, where each warp
has 16 rows. Those of wmma are nobody's promise; on sm_80 and sm_90 they are these as well, with
m8n32k16 computed as the transpose of m32n8k16, and with f16 in as many registers as Volta had,
which repeat the elements. `tests/cuda/test_fragments.py` compares all of it with a device.
"""

from __future__ import annotations

import dataclasses

from .table import BITS, Entry

#: The registers of A and of B in wmma of f16.
_VOLTA = 8


@dataclasses.dataclass(frozen=True)
class Fragment:
    """`elements[thread][i]` is (row, column) of a thread's i-th element.

    Element i is in register i // `per_register`, from its lowest bits upwards.
    """

    elements: tuple[tuple[tuple[int, int], ...], ...]
    per_register: int

    @property
    def registers(self) -> int:
        return len(self.elements[0]) // self.per_register

    def transposed(self) -> Fragment:
        turned = tuple(tuple((col, row) for row, col in thread) for thread in self.elements)
        return Fragment(turned, self.per_register)

    def holders(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """The (thread, register) that hold each element."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for thread, elements in enumerate(self.elements):
            for i, element in enumerate(elements):
                found.setdefault(element, []).append((thread, i // self.per_register))
        return found


def fragment(entry: Entry, operand: str) -> Fragment | None:
    """Holders of operand "a", "b", "c" or "d"; None if it is in shared memory: see `places`."""
    m, n, k = entry.shape
    type_ = getattr(entry, operand)
    if entry.instruction == "wgmma":
        if operand == "b" or (operand == "a" and not entry.a_in_registers):
            return None
        return _warps(_a(16, k, BITS[type_]) if operand == "a" else _c(16, n, BITS[type_]))
    if entry.instruction == "mma" and entry.a == "f16" and m == 8:
        return _quads(entry, operand)
    turned = (m, n) == (8, 32)
    if turned:
        m, n, operand = n, m, {"a": "b", "b": "a"}.get(operand, operand)
    if operand in ("c", "d"):
        found = _c(m, n, BITS[type_])
    else:
        found = _a(m, k, BITS[type_]) if operand == "a" else _b(k, n, BITS[type_])
        if entry.instruction == "wmma" and entry.a == "f16":
            times = _VOLTA // found.registers
            found = Fragment(tuple(thread * times for thread in found.elements), found.per_register)
    return found.transposed() if turned else found


def ldmatrix(count: int, trans: bool) -> Fragment:
    """Holders after ldmatrix .x1, .x2 or .x4, of 8 x 8 matrices that stand below each other."""
    found = _c(8 * count, 8, 16)
    if not trans:
        return found
    turned = (
        tuple((row // 8 * 8 + col, row % 8) for row, col in thread) for thread in found.elements
    )
    return Fragment(tuple(turned), 2)


def places(entry: Entry, operand: str) -> dict[tuple[int, int], int]:
    """The bit at which each element of wgmma's A or B in shared memory begins.

    As `Layout` of one_wgmma.cuh: 16-byte chunks of patterns of 8 rows of `swizzle` bytes.
    """
    m, n, k = entry.shape
    rows, cols = (m, k) if operand == "a" else (k, n)
    by_rows = getattr(entry, f"{operand}_layout") == "row"
    mn_major = by_rows == (operand == "b")
    bits, row = BITS[getattr(entry, operand)], entry.swizzle or 16
    each = 128 // bits
    found = {}
    for r in range(rows):
        for c in range(cols):
            line, at = (r, c) if by_rows else (c, r)
            byte = _chunk(line, at // each, row, mn_major, entry.swizzle > 0)
            found[r, c] = 8 * byte + at % each * bits
    return found


def _chunk(line: int, chunk: int, row: int, mn_major: bool, swizzled: bool) -> int:
    k_step = 8 * row if mn_major or not swizzled else 16
    mn_step = 16 * row if mn_major or not swizzled else 8 * row
    at = line % 8 * row
    if mn_major:
        chunks = row // 16
        at += line // 8 * k_step + chunk // chunks * mn_step + chunk % chunks * 16
    else:
        at += line // 8 * mn_step + chunk * k_step
    return at ^ (at >> 7 & row // 16 - 1) << 4


def _a(rows: int, k: int, bits: int) -> Fragment:
    each = max(32, bits) // bits
    return Fragment(
        tuple(
            tuple(
                (first + half + g, step + each * t + e)
                for first in range(0, rows, 16)
                for step in range(0, k, 4 * each)
                for half in range(0, min(rows, 16), 8)
                for e in range(each)
            )
            for g in range(8)
            for t in range(4)
        ),
        each,
    )


def _b(k: int, cols: int, bits: int) -> Fragment:
    each = max(32, bits) // bits
    return Fragment(
        tuple(
            tuple(
                (step + each * t + e, first + g)
                for first in range(0, cols, 8)
                for step in range(0, k, 4 * each)
                for e in range(each)
            )
            for g in range(8)
            for t in range(4)
        ),
        each,
    )


def _c(rows: int, cols: int, bits: int) -> Fragment:
    return Fragment(
        tuple(
            tuple(
                (half + g, first + 2 * t + e)
                for first in range(0, cols, 8)
                for half in range(0, rows, 8)
                for e in (0, 1)
            )
            for g in range(8)
            for t in range(4)
        ),
        max(32 // bits, 1),
    )


def _warps(of_one: Fragment) -> Fragment:
    """Holders in a warpgroup: each warp has the next 16 rows."""
    elements = (
        tuple((16 * warp + row, col) for row, col in thread)
        for warp in range(4)
        for thread in of_one.elements
    )
    return Fragment(tuple(elements), of_one.per_register)


def _quads(entry: Entry, operand: str) -> Fragment:
    """Holders of m8n8k4, by which a warp multiplies four tiles: here four times the same."""
    if operand in ("c", "d"):
        wide = getattr(entry, operand) == "f32"
        elements = tuple(_quad_c(lane, wide) for lane in range(32))
        return Fragment(elements, 1 if wide else 2)
    along_k = getattr(entry, f"{operand}_layout") == ("row" if operand == "a" else "col")
    found = []
    for lane in range(32):
        q, high = lane % 4, lane // 16 * 4
        held = [(q + high, i) if along_k else (high + i, q) for i in range(4)]
        found.append(tuple(held if operand == "a" else [(k, line) for line, k in held]))
    return Fragment(tuple(found), 2)


def _quad_c(lane: int, wide: bool) -> tuple[tuple[int, int], ...]:
    high = lane // 16 * 4
    if not wide:
        return tuple((lane % 4 + high, col) for col in range(8))
    return tuple(
        (lane % 2 + i % 2 * 2 + high, lane // 2 % 2 * 2 + i // 2 * 4 + e)
        for i in range(4)
        for e in (0, 1)
    )
