"""The roofs of each operand type, and where the suite's problems stand below them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from . import report
from .case import ACCUMULATE, Case
from .report import align, digits
from .roof import SIZE, Roofs
from .rows import REFERENCE, Row
from .select import raced

#: Operand type and how fp32 is multiplied.
TYPES = (
    ("bf16", "ieee"),
    ("fp16", "ieee"),
    ("fp8", "ieee"),
    ("int8", "ieee"),
    ("fp32", "tf32"),
    ("fp32", "ieee"),
    ("fp64", "ieee"),
)


def cases() -> list[Case]:
    """A large product of each type, in the layout that all of them have."""
    return [
        Case(SIZE, SIZE, SIZE, "NT", dtype, ACCUMULATE[dtype], precision)
        for dtype, precision in TYPES
    ]


def at_own_clock(rows: Sequence[Row], roofs: Roofs) -> list[Row]:
    """The rows with the dense rate at the clock that their own product settles at."""
    return [dataclasses.replace(row, roof=roofs.of(row.case, row.sm_mhz)) for row in rows]


def name(case: Case) -> str:
    """tf32 for fp32 that is multiplied so."""
    return case.precision if (case.dtype, case.precision) == ("fp32", "tf32") else case.dtype


def text(roofs: Sequence[Row], suite: Sequence[Row]) -> str:
    """The roofs, then the suite's problems on them."""
    timed = [row for row in suite if row.of_roof]
    parts = [align(_table(roofs))]
    parts += [align(_places(timed))] if timed else ["no suite is recorded for this GPU"]
    return "\n\n".join(parts)


def markdown(roofs: Sequence[Row]) -> str:
    """The roofs as a Markdown table."""
    head, *body = _table(roofs)
    return report.markdown(head, body)


def _table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    size = f"{SIZE}³ NT"
    found = [(size, "MHz", "W", "dense TFLOP/s at that clock", "cuBLAS TFLOP/s", "%", "copy GB/s")]
    for row in rows:
        if row.competitor != REFERENCE or not row.us or not row.roof:
            continue
        found.append(
            (
                name(row.case),
                f"{row.sm_mhz:.0f}" if row.sm_mhz else "",
                f"{row.power_w:.0f}" if row.power_w else "",
                digits(row.roof.tflops),
                digits(row.tflops),
                f"{100 * row.tflops / row.roof.tflops:.0f}",
                f"{row.roof.gbs:.0f}",
            )
        )
    return found


def _places(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Each problem's intensity, what bounds it, and the shares of the roof, the lowest first."""
    others = sorted({row.competitor for row in rows} - {REFERENCE})
    found = [
        ("problem", "", "FLOP/byte", "bound by", *(f"{o}, % of roof" for o in others), REFERENCE)
    ]
    for key, own in sorted(
        raced(rows).items(), key=lambda item: min(r.of_roof for r in item[1].values())
    ):
        row = next(iter(own.values()))
        case, roof = row.case, row.roof
        memory = case.bytes / roof.gbs / 1e3 > case.flops / roof.tflops / 1e6
        cells = [f"{100 * own[o].of_roof:.0f}" if o in own else "" for o in (*others, REFERENCE)]
        intensity = digits(case.flops / case.bytes)
        found.append((key, str(case), intensity, "memory" if memory else "arithmetic", *cells))
    return found
