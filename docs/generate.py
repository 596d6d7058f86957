"""Writes what the documentation derives: `python -m docs.generate [--check]`, or `make docs`.

From the rungs' headers, the committed measurements and records, and the commands' parsers: a page
per rung and one of commands, the parts of README.md and of docs/ that stand between
`<!-- begin: NAME -->` and `<!-- end: NAME -->`, and the figures. Hand-written text is left alone.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from perf import tables
from perf.experiments import peers, serving
from perf.experiments.show import PICTURES, VIEWS
from perf.figures import FIGURES, drawn_from
from perf.problems import read_suite
from perf.rows import Row, recorded
from perf.rungs import both_ladders, one_ladder
from perf.select import latest_compare, latest_ladder, problems_of
from perf.views import Selection, full_suite, newest_suite
from tools import suite_record
from tritemm.rungs import RUNGS

from . import commands, concept_pages, conformance, correspondence, cost_model, excerpt, supported
from . import pictures as drawn
from .cards import OTHER, TUNED
from .exercises import write
from .lessons import FOLDER, page_of, wins
from .lessons import pages as tutorial
from .primer import occupancy
from .races import parts as races
from .types import page as types

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
#: The page in front of the ladder's.
PRIMER = FOLDER / "00_primer.md"
SIZES, LAYOUTS = (4096, 8192), ("NN", "NT")
#: The case of the README's table and of the Triton ladder's figure.
HEADLINE = (8192, "NN")
#: Size, type and accumulator of the two ladders' comparisons; the figure shows the first.
COMPARISONS = (
    (4096, "fp16", "fp32"),
    (8192, "fp16", "fp32"),
    (4096, "fp16", "fp16"),
    (4096, "bf16", "fp32"),
    (8192, "bf16", "fp32"),
)
#: What the figures show where it is not the view's default; each is FIGURES / NAME.png.
SHOWN = {
    "ladder": dataclasses.replace(TUNED, size=(HEADLINE[0],) * 3, layout=HEADLINE[1]),
    "compare": dataclasses.replace(
        TUNED, size=(COMPARISONS[0][0],) * 3, dtype=COMPARISONS[0][1], accumulate=COMPARISONS[0][2]
    ),
}


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    rows = recorded()
    texts = tutorial.pages(rows)
    texts[DOCS / "reference" / "commands.md"] = commands.page()
    paths = (ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("concepts/*.md"))
    asked = {name for path in paths for name in excerpt.asked(path.read_text())}
    parts = {
        **{name: view_table(name, rows) for name in asked & VIEWS.keys()},
        "ladder": ladder_table(rows, "docs/tutorial/"),
        "pages": ladder_table(rows, "tutorial/"),
        "measurements": measurements(rows),
        "comparison": comparison(rows),
        "headline": headline(rows),
        "losses": losses(rows),
        "other card": other(rows),
        "record": record(),
        "serving": pictured("serving", "Layers of served models", rows),
        "model": pictured("model", "Whole models", rows),
        "moe": section("moe", "Products of groups", rows),
        "experts": section("experts", "Layers of experts", rows),
        **correspondence.parts(rows),
        **cost_model.parts(),
        **conformance.parts(),
        **types.parts(),
        **supported.parts(),
        **concept_pages.parts(),
        **races(rows),
    }
    for path in paths:
        texts[path] = excerpt.page(path, parts)
    contents = FOLDER / "index.md"
    texts[contents] = excerpt.page(contents, {"pages": ladder_table(rows, "")})
    asked_first = {"exercise": tutorial.kernel_asked(write.PRIMER)}
    texts[PRIMER] = excerpt.page(PRIMER, occupancy.parts() | asked_first)
    return texts


def drawings() -> dict[Path, str]:
    """The pictures of concepts, which are texts, too."""
    return {drawn.path_of(name): draw() for name, draw in drawn.PICTURES.items()}


def ladder_table(rows: list[Row], folder: str) -> str:
    """One line per rung: link, what it adds, its sign, its speed at the headline case, and its best
    one on the suite."""
    size, layout = HEADLINE
    suite = newest_suite(rows, TUNED)
    newest = {row.rung: row for row in latest_ladder(rows, size=size, layout=layout)}
    lines = []
    for kernel in RUNGS:
        row = newest.get(kernel.name)
        signs = ", ".join(kernel.signs.get(90, kernel.signs[max(kernel.signs)])[0])
        adds = kernel.header["Adds to"].partition(": ")[2] or kernel.title
        speed = (f"{row.tflops:.3g}", ratio(row)) if row and row.us else ("", "")
        link = f"[{kernel.number:02} {kernel.name}]({folder}{page_of(kernel).name})"
        lines.append([link, adds, signs, *speed, wins.best(suite, kernel.name)])
    head = ["rung", "adds", "signs on sm_90", "TFLOP/s", "x cuBLAS", "best on the suite"]
    said = newest and (
        f"{tables.caption(list(newest.values()))}. The last column covers the suite's shapes for "
        f"which `tritemm.matmul` takes the rung: {tables.origin(suite)}."
    )
    return tables.markdown([tables.Table(head, lines, words=3, tail=1), said])


def ratio(row: Row) -> str:
    """Times cuBLAS's speed; a tie is named (`Row.tie`)."""
    places = 3 if row.ratio.p50 < 0.1 else 2
    return f"{row.ratio.p50:.{places}f}" + (" (tie)" if row.tie else "")


def measurements(rows: list[Row]) -> str:
    """The full tables of all cases."""
    ladders = [latest_ladder(rows, size=n, layout=layout) for n in SIZES for layout in LAYOUTS]
    return captioned({tables.caption(own): [one_ladder(own)] for own in ladders if own})


def captioned(found: Mapping[str, list[tables.Table]]) -> str:
    """Tables under their captions."""
    return "\n\n".join(f"**{said}**\n\n{tables.markdown(own)}" for said, own in found.items())


def view_table(name: str, rows: list[Row], selection: Selection = TUNED) -> str:
    """The table of a view of `perf.views`."""
    view = VIEWS[name]
    chosen = view.chosen(rows, selection)
    return view.table(chosen, selection) if chosen else "Not yet measured."


def suite(rows: list[Row], selection: Selection = TUNED) -> list[tables.Result]:
    """The newest run of the suite: tritemm.matmul against cuBLAS."""
    return tables.against_cublas(VIEWS["suite"].chosen(rows, selection))


def headline(rows: list[Row]) -> str:
    """The suite in a sentence, the layers of served models in another, the peers in a third where
    all of the suite was raced against them too, and what each was measured with."""
    own = suite(rows)
    if not own:
        return "Not yet measured."
    every = tables.Tally("all", own)
    won, tied, lost = every.sides
    count, whole = len(every.timed), len(read_suite())
    shapes = f"all {whole} shapes" if count == whole else f"{count} of the {whole} shapes"
    parts = [
        f"On {shapes} of the suite, sustained, "
        f"tritemm.matmul runs at {every.geomean:.2f}x cuBLAS's speed (geomean): {won} won, {tied} "
        f"tied, {lost} lost, the worst at {every.least.ratio.p50:.2f}x "
        f"({every.least.ours.case.size})."
    ]
    origins = [tables.origin([result.ours for result in own])]
    served = VIEWS["serving"].chosen(rows, TUNED)
    if said := serving.sentence(served):
        parts.append(said)
        origins.append(f"served layers: {tables.origin(served)}")
    beside = VIEWS["peers"].chosen(rows, TUNED)
    if problems_of(beside, TUNED.competitor) >= full_suite():
        said = peers.sentence(beside, TUNED.competitor)
        parts += [said] if said else []
        origins += [f"against peers: {tables.origin(beside)}"] if said else []
    return "\n".join([*(f"- {part}" for part in parts), "", f"<sub>{'; '.join(origins)}.</sub>"])


def other(rows: list[Row]) -> str:
    """The suite and the layers of served models on the other card."""
    parts = [view_table("suite", rows, OTHER), f"Lost, the worst first: {losses(rows, OTHER)}"]
    served = VIEWS["serving"].chosen(rows, OTHER)
    if said := serving.sentence(served):
        parts.append(f"{said} <sub>{tables.origin(served)}.</sub>")
    return "\n\n".join(parts)


def losses(rows: list[Row], selection: Selection = TUNED) -> str:
    """What cuBLAS wins, the worst first."""
    own = suite(rows, selection)
    if not own:
        return "Not yet measured."
    lost = tables.sorted_by(own, -1)
    listed = (f"{r.id} {r.ours.case} {r.ratio.p50:.2f}x" for r in lost)
    return "; ".join(listed) + "."


def record() -> str:
    """The last run of the suite on each GPU."""
    texts = (path.read_text() for path in sorted(suite_record.RESULTS.glob("*.json")))
    code = suite_record.code_hash()
    lines = [f"- {suite_record.sentence(json.loads(text), code)}" for text in texts]
    return "\n".join(["Tested:", "", *lines]) if lines else "Not yet run on a GPU."


def comparison(rows: list[Row]) -> str:
    """The tables of both ladders side by side."""
    found = {tables.caption(both): both_ladders(both) for both in comparisons(rows)}
    return captioned(found) or "Not yet measured."


def comparisons(rows: list[Row]) -> list[list[Row]]:
    """Those of the `COMPARISONS` that were measured."""
    every = [
        latest_compare(rows, size=size, dtype=dtype, accumulate=accumulate)
        for size, dtype, accumulate in COMPARISONS
    ]
    return [both for both in every if any(row.us for row in both)]


def pictured(name: str, title: str, rows: list[Row]) -> str:
    """The table of a view, and its picture where there is one."""
    table, drawn = view_table(name, rows), VIEWS[name].chosen(rows, TUNED)
    return f"{table}\n\n![{title}](figures/{name}.png)" if drawn else table


def section(name: str, title: str, rows: list[Row]) -> str:
    """A view under a heading of its own; nothing where nothing was measured."""
    if not VIEWS[name].chosen(rows, TUNED):
        return ""
    shown = pictured(name, title, rows) if name in PICTURES else view_table(name, rows)
    return f"## {title}\n\n{shown}"


def pictures() -> dict[Path, tuple]:
    """Every figure that has something to show: its view, the rows and their selection."""
    rows = recorded()
    found = {}
    for name, view in PICTURES.items():
        selection = SHOWN.get(name, TUNED)
        if chosen := view.chosen(rows, selection):
            found[FIGURES / f"{name}.png"] = (view, chosen, selection)
    return found


def stale() -> list[Path]:
    """Generated files that are not what they would be written as now."""
    return sorted(stale_texts(pages() | drawings()) | stale_figures(pictures()))


def stale_texts(wanted: dict[Path, str]) -> set[Path]:
    """Those of `pages()` and `drawings()` that differ on disk, and those of what is gone."""
    extra = {*FOLDER.glob("[0-9]*.md"), *drawn.FOLDER.glob("*")} - wanted.keys()
    return extra | {p for p, text in wanted.items() if not p.exists() or p.read_text() != text}


def stale_figures(wanted: dict[Path, tuple]) -> set[Path]:
    """Those of `pictures()` that show other rows on disk, and figures that nothing is shown in.

    A figure carries a digest of its rows: pixels differ between versions of matplotlib.
    """
    extra = set(FIGURES.glob("*.png")) - wanted.keys()
    return extra | {
        path for path, (view, rows, _) in wanted.items() if drawn_from(path) != view.digest(rows)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    check = parser.parse_args().check
    texts, figures = pages() | drawings(), pictures()
    found = sorted(stale_texts(texts) | stale_figures(figures))
    for path in found:
        if check:
            print(f"stale: {path.relative_to(ROOT)}; run `make docs`")
            continue
        if path in texts:
            path.write_text(texts[path])
        elif path in figures:
            view, rows, selection = figures[path]
            view.draw(rows, path, selection)
        else:
            path.unlink()
        print(f"{'wrote' if path.exists() else 'removed'} {path.relative_to(ROOT)}")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
