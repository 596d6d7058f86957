"""Model rows as one table: a line per model, work and mode; tritemm's time beside torch's."""

from __future__ import annotations

from collections.abc import Sequence

from . import report
from .model import CASES, EXPERIMENT, MODELS, MODES, OURS
from .report import align, digits, origin, spread
from .rows import NULL, REFERENCE, Row
from .select import newest_races, raced

HEAD = ("", "torch ms", "tritemm ms", "x torch (p20-p80)", "torch again", "off fp32: torch", "ours")
_TITLES = {REFERENCE: "torch", NULL: "torch again", OURS: "tritemm"}


def latest(rows: Sequence[Row], gpu: str | None = None) -> list[Row]:
    """The newest race of each model, work and mode on one GPU, in the order of the table.

    A command may have raced only some. A race with other numbers of layers is of another problem,
    and the newest counts. Without `gpu`, the GPU of the newest row.
    """
    order = [f"{m} {c} {mode}" for m in MODELS for c in CASES for mode in MODES]
    return newest_races(rows, EXPERIMENT, order, gpu)


def text(rows: Sequence[Row]) -> str:
    """For a terminal; the rows of one run."""
    if not rows:
        return "nothing was measured"
    title = f"transformers' models on {rows[0].environment.gpu}, by torch and by tritemm"
    return "\n".join([title, align([HEAD, *_table(rows)]), *_notes(rows), _method(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table and its caption."""
    notes = [f"{note}." for note in _notes(rows)]
    caption = f"{_method(rows)} {origin(rows)}."
    return "\n\n".join([report.markdown(HEAD, _table(rows)), *notes, caption])


def title(row: Row) -> str:
    """`Llama train, compiled`."""
    _, case, mode = row.problem["id"].split()
    return f"{row.problem['class']} {case}, {mode}"


def _table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [_line(race) for race in raced(rows).values()]


def _line(race: dict[str, Row]) -> tuple[str, ...]:
    torchs, again, ours = (race.get(name) for name in (REFERENCE, NULL, OURS))
    ratio = ours and ours.us and ours.ratio
    return (
        title(next(iter(race.values()))),
        _ms(torchs),
        _ms(ours),
        spread(ratio, ours.tie) if ratio else "",
        f"{again.ratio.p50:.3f}" if again and again.ratio else "",
        _off(torchs),
        _off(ours),
    )


def _ms(row: Row | None) -> str:
    if row is None:
        return ""
    return digits(row.us.p50 / 1e3) if row.us else row.outcome


def _off(row: Row | None) -> str:
    """The error's norm over the values', of the logits or of all gradients together."""
    found = (row and row.agreement) or {}
    value = found.get("logits", found.get("gradients"))
    return "" if value is None else f"{value:.2g}"


def _notes(rows: Sequence[Row]) -> list[str]:
    """What became of the unmeasured, and what there is to say of the measured; each once."""
    notes = [
        f"{title(row)}, {_TITLES.get(row.competitor, row.competitor)}: "
        f"{'' if row.us else f'{row.outcome}: '}{row.reason}"
        for row in rows
        if row.reason
    ]
    return list(dict.fromkeys(notes))


def _method(rows: Sequence[Row]) -> str:
    works = dict.fromkeys(f"{row.problem['class']} {row.problem['name']}" for row in rows)
    rounds = max((row.rounds for row in rows if row.us), default=0)
    return (
        f"{'; '.join(works)}. bf16, random weights; the median of {rounds} rounds, in which each "
        "runs once, for 0.1 s, in random order. x torch: torch's time over tritemm's in the same "
        "round. Off fp32: the norm of what logits (in training, gradients) differ by from the same "
        "model in fp32, over their own."
    )
