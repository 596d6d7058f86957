"""Rows as tables: aligned text for a terminal, Markdown for the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tritemm.spec import Config

from . import sources
from .rows import CUDA, HALF, TRITON, Row
from .stats import Quantiles


def label(row: Row) -> str:
    """`07 pipelined`, `wmma_base` (CUDA's rungs are called by their names alone), `cuBLAS`.

    `05 permuted[1], padded` is a rung in a further config, and what tells it from the first.
    `tritemm.matmul`, where it has no number because it races against rungs.
    """
    if row.number is None:
        auto = row.competitor == "auto"
        return "tritemm.matmul" if auto else row.competitor.replace("cublas", "cuBLAS")
    if row.ladder == CUDA:
        return row.competitor
    return f"{row.number:02d} {row.competitor}{told(row.competitor, row.config)}"


def told(name: str, config: Mapping | str | None) -> str:
    """What tells a rung's further config, `name[1]`, from its first: `, padded`, `, 3 stages`.

    The config is a mapping of its fields, or its text.
    """
    if not name.endswith("]") or not config:
        return ""
    text = config if isinstance(config, str) else str(Config(**config))
    found = re.search(r"\w+(?= shared memory)", text) or re.search(r"\d+ stages?", text)
    return f", {found[0]}" if found else ""


def text_table(rows: Sequence[Row]) -> str:
    """The rows of one race: microseconds, TFLOP/s, times cuBLAS's speed, times the rung below's.

    A CUDA rung has its Triton twins too, with their speed over its own.
    """
    twins = any(row.ladder == CUDA for row in rows)
    head = ("", "us", "TFLOP/s", "x cuBLAS [p20-p80]", "x below", "MHz", "W", "error/bound")
    if twins:
        head += ("Triton / this",)
    body = [
        (label(row), *_text_cells(row, before), *([_twins(row)] if twins else []))
        for row, before in zip(rows, (None, *rows), strict=False)
    ]
    widths = [max(len(cells[i]) for cells in (head, *body)) for i in range(len(head))]
    lines = []
    for words, row in zip((head, *body), (None, *rows), strict=True):
        name, *cells = words
        text = name.ljust(widths[0])
        if row is None or row.us:
            text += "".join(
                "  " + (c.ljust(w) if title.startswith("Triton") else c.rjust(w))
                for c, w, title in zip(cells, widths[1:], head[1:], strict=True)
            )
        else:
            text += f"  {row.outcome}: {row.reason}"
        lines.append(text.rstrip())
    return "\n".join([_title(rows), *lines, *_notes(rows)])


def _text_cells(row: Row, before: Row | None) -> tuple[str, ...]:
    if not row.us:
        return ("",) * 7
    return (
        digits(row.us.p50),
        digits(row.tflops),
        _ratio(row),
        _below(row, before),
        _round(row.sm_mhz),
        _round(row.power_w),
        "" if row.worst is None else f"{row.worst:.2f}",
    )


def _title(rows: Sequence[Row]) -> str:
    if not rows:
        return "nothing was measured"
    first, measured = rows[0], [row for row in rows if row.us]
    title = f"{first.case} on {first.environment.gpu}, {first.mode}"
    if not measured:
        return title
    rounds = max(row.rounds for row in measured)
    return f"{title}, {rounds} rounds, settled at {_round(measured[0].settled_mhz) or '?'} MHz"


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = []
    if any(row.tie and row.rung for row in rows):
        notes.append(
            "= a tie with cuBLAS: 1 lies between p20 and p80, or the null test is as far from 1"
        )
    notes += [f"{label(row)}: {row.reason}" for row in rows if row.us and row.reason]
    return notes


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    mark, ratio = "=" if row.tie else " ", row.ratio
    return f"{mark}{ratio.p50:.3f} [{ratio.p20:.3f}-{ratio.p80:.3f}]"


def _below(row: Row, before: Row | None) -> str:
    """The ratio to the rung below, and which that is unless it stands in the line before."""
    if not row.ratio_below:
        return ""
    ratio = f"{row.ratio_below.p50:.2f}"
    return ratio if before and before.competitor == row.below else f"{ratio} ({row.below})"


def markdown_table(rows: Sequence[Row]) -> str:
    """`select.latest_ladder(...)` as a Markdown table; what was not measured says why."""
    lines = [
        "| rung | µs | TFLOP/s | x cuBLAS (p20-p80) | x the rung below |",
        "|---|--:|--:|--:|--:|",
    ]
    for row, before in zip(rows, (None, *rows), strict=False):
        if not row.us:
            reason = (row.reason or "").replace("|", "\\|")
            lines.append(f"| {label(row)} | | | {row.outcome}: {reason} | |")
            continue
        ratio = spread(row.ratio, row.tie) if row.rung and row.ratio else ""
        cells = (label(row), digits(row.us.p50), digits(row.tflops), ratio, _below(row, before))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def markdown_compare(rows: Sequence[Row]) -> str:
    """`select.latest_compare(...)`: the CUDA ladder beside its Triton twins, then Triton's ladder.

    What was not measured stands below its table, by reason.
    """
    references = [row for row in rows if row.rung is None]
    half = any(row.competitor == HALF for row in references)
    tables = []
    for ladder, first, last in (
        (CUDA, "CUDA rung", "Triton twin: its speed over this one's"),
        (TRITON, "Triton rung", ""),
    ):
        own = [row for row in rows if row.ladder == ladder]
        cells = [first, "µs", "TFLOP/s", "x cuBLAS (p20-p80)", "x the rung below"]
        if half:
            cells.insert(4, "x cuBLAS fp16")
        if last:
            cells.append(last)
        lines = [
            line(cells),
            "|---|" + "--:|" * (len(cells) - 1 - bool(last)) + "---|" * bool(last),
        ]
        for row, before in zip([*own, *references], (None, *own, *references), strict=False):
            if row.us:
                lines.append(line(_compare_cells(row, before, len(cells), half)))
        tables += ["\n".join(lines), *unmeasured(own, lambda row: f"`{label(row)}`")]
    return "\n\n".join(tables)


def unmeasured(rows: Sequence[Row], named: Callable[[Row], str]) -> list[str]:
    """A paragraph that names the rows without a time by what became of them; none if all have."""
    reasons: dict[str, dict[str, None]] = {}
    for row in rows:
        if not row.us:
            reasons.setdefault(f"{row.outcome}: {row.reason}", {})[named(row)] = None
    if not reasons:
        return []
    return ["; ".join(f"{', '.join(names)} {reason}" for reason, names in reasons.items()) + "."]


def _compare_cells(row: Row, before: Row | None, count: int, half: bool) -> list[str]:
    """`count` cells of a measured row."""
    named = row.rung or row.competitor == HALF
    ratio = spread(row.ratio, row.tie) if named and row.ratio else ""
    cells = [label(row), digits(row.us.p50), digits(row.tflops), ratio]
    if half:
        alike = (row.versus or {}).get(HALF)
        cells.append(f"{alike.p50:.3f}{', a tie' if alike.tie else ''}" if alike else "")
    cells.append(_below(row, before))
    return [*cells, _twins(row)][:count]


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _twins(row: Row) -> str:
    """The speed of a CUDA rung's Triton twins over its own: `tiled 1.43, swizzled 1.01 (tie)`."""
    if row.ladder != CUDA or not row.versus:
        return ""
    ratios = {name: ratio.inverse for name, ratio in row.versus.items() if name != HALF}
    return ", ".join(
        f"{name} {ratio.p50:.2f}{' (tie)' if ratio.tie else ''}" for name, ratio in ratios.items()
    )


def spread(ratio: Quantiles, tie: bool) -> str:
    """The median and the percentiles around it; a tie is named."""
    return f"{ratio.p50:.3f} ({ratio.p20:.3f}-{ratio.p80:.3f}){', a tie' if tie else ''}"


def markdown(head: Sequence[str], body: Iterable[Sequence[str]], words: int = 1) -> str:
    """A Markdown table: the first `words` columns to the left, figures to the right."""
    rule = "|" + "---|" * words + "--:|" * (len(head) - words)
    return "\n".join([line(head), rule, *map(line, body)])


def align(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns for a terminal: words to the left, figures to the right.

    A column is of figures where no cell below the head begins with a letter.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [not any(cell[:1].isalpha() for cell in col[1:]) for col in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if figures else cell.ljust(width)
            for cell, width, figures in zip(cells, widths, right, strict=True)
        ).rstrip()
        for cells in lines
    )


def caption(rows: Sequence[Row]) -> str:
    """The case and the origin, for under a table."""
    return f"{rows[0].case}, {rows[0].mode}. {origin(rows)}"


def origin(rows: Sequence[Row]) -> str:
    """GPU, versions, commit and day of the newest row; and whether the kernels are still those."""
    row = max(rows, key=lambda row: row.time)
    e = row.environment
    commit = f"commit {e.commit[:7]}{'+' if e.dirty else ''}" if e.commit else "commit unknown"
    if len({r.environment.commit for r in rows}) > 1:
        commit += " and older"
    versions = f"Triton {e.triton}, torch {e.torch}, cuBLAS {e.cublas or '?'}"
    return f"{e.gpu}, {versions}, {commit}, {row.time[:10]}{sources.note(rows)}"


def digits(value: float) -> str:
    """At least three significant digits."""
    for limit, decimals in ((1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def _round(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
