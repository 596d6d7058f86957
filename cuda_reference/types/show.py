"""`run types/NAME`: one instruction's tile, who holds which element, and its result."""

from __future__ import annotations

import torch

from cuda_reference import loader

from .fragments import fragment, places
from .run import RANGES, multiply, why_not
from .table import DTYPES, Entry, find, held_by

#: Lines of an operand, and characters of a line, that are printed.
LINES, WIDTH = 16, 100
#: Whose elements they are: the threads, and the registers of each; or a place in shared memory.
Holder = tuple[str, tuple[str, ...]]


def entry_of(source: str, name: str | None) -> Entry:
    """The entry of this .cu that is called `name`, by default the first; ValueError if none is."""
    mine = held_by(source)
    if not mine:
        raise ValueError(f"{source} multiplies nothing; `run` is for the others of types/")
    if name is None:
        return mine[0]
    entry = find(name)
    if entry not in mine:
        raise ValueError(f"{name} is in {entry.source}, not in {source}")
    return entry


def describe(entry: Entry) -> str:
    """The instruction, and of A, B and C who holds which element."""
    m, n, k = entry.shape
    title = f"{entry.name}: D[{m} x {n}] = A[{m} x {k}] B[{k} x {n}] + C"
    return "\n".join([title, entry.text, *(_operand(entry, name) for name in "abc")])


def _operand(entry: Entry, name: str) -> str:
    """A table of an operand's rows, of B's columns, or of the lines in shared memory."""
    m, n, k = entry.shape
    held, what = fragment(entry, name), f"{name.upper()}, {getattr(entry, name)}"
    if held is None:
        layout = getattr(entry, f"{name}_layout")
        swizzle = f"swizzled by {entry.swizzle} bytes" if entry.swizzle else "without swizzle"
        head = f"{what}, in shared memory, {swizzle}: where 16 bytes begin"
        cells = _by_place(entry, name)
    else:
        layout = "col" if name == "b" else "row"
        each = f", {held.per_register} elements each" if held.per_register > 1 else ""
        head = f"{what}, {held.registers} register{'s' * (held.registers > 1)} a thread{each}"
        cells = _by_holder(held.holders(), name)
    rows, cols = {"a": (m, k), "b": (k, n), "c": (m, n)}[name]
    lines, length = (rows, cols) if layout == "row" else (cols, rows)
    table = [
        _runs([cells[(line, at) if layout == "row" else (at, line)] for at in range(length)])
        for line in range(min(lines, LINES))
    ]
    word = "row" if layout == "row" else "column"
    heads = [f"{a}-{b}" if b > a else f"{a}" for a, b, _ in table[0]]
    texts = [("", heads)]
    texts += [(f"{word} {i}", [cell for *_, cell in runs]) for i, runs in enumerate(table)]
    width = 2 + max(len(cell) for _, cells in texts for cell in cells)
    most = (WIDTH - 17) // width
    text = []
    for label, cells in texts:
        shown = "".join(f"{cell:<{width}}" for cell in cells[:most])
        text.append(f"  {label:<10}{shown}{'...' * (len(cells) > most)}".rstrip())
    text += [f"  ... to {word} {lines - 1}"] if lines > LINES else []
    return "\n".join(["", head, *text])


def _by_holder(holders, name: str) -> dict[tuple[int, int], Holder]:
    """T0/4 a0: threads 0 and 4 have it in a0. a0=a4: in both."""
    cells = {}
    for element, held in holders.items():
        threads = "/".join(map(str, dict.fromkeys(thread for thread, _ in held)))
        registers = "=".join(f"{name}{i}" for i in dict.fromkeys(register for _, register in held))
        cells[element] = f"T{threads}", (registers,)
    return cells


def _by_place(entry: Entry, name: str) -> dict[tuple[int, int], Holder]:
    return {at: (f"@{bit // 128 * 16}", ()) for at, bit in places(entry, name).items()}


def _runs(cells: list[Holder]) -> list[tuple[int, int, str]]:
    """Neighbours that one thread has, as (first, last, text)."""
    runs = []
    for at, (holder, registers) in enumerate(cells):
        if runs and runs[-1][2] == holder:
            first, _, _, before = runs.pop()
            more = tuple(dict.fromkeys(before + registers))
            runs.append((first, at, holder, more))
        else:
            runs.append((at, at, holder, registers))
    return [(a, b, f"{holder} {','.join(names)}".rstrip()) for a, b, holder, names in runs]


def check(entry: Entry, source: str) -> str | None:
    """Run it by `source` on small integers, whose sums are exact; what is wrong with D, or None.

    Raises what `types.multiply` raises, and ValueError where this GPU lacks the instruction.
    """
    capability = torch.cuda.get_device_capability() if loader.architecture() else (0, 0)
    if reason := why_not(entry, capability):
        raise ValueError(reason)
    m, n, k = entry.shape
    a, b, c = _draw((m, k), entry.a), _draw((k, n), entry.b), _draw((m, n), entry.c)
    given = ((a, entry.a), (b, entry.b), (c, entry.c))
    tensors = [x.to(DTYPES[type_]).cuda() for x, type_ in given]
    got = multiply(entry, *tensors, source=source).cpu().double()
    products = a @ (1 - b) + (1 - a) @ b if entry.op == "xor" else a @ b
    want = entry.scale_a * entry.scale_b * products + entry.scale_d * c
    wrong = int((got != want).sum())
    return f"{wrong} of {m * n} elements of D are wrong" if wrong else None


def _draw(shape: tuple[int, int], type_: str) -> torch.Tensor:
    low, high = (0, 1) if type_ == "b1" else RANGES.get(type_, (-3, 3))
    low = 0 if type_ == "u8" else max(low, -3)
    return torch.randint(low, min(high, 3) + 1, shape).double()
