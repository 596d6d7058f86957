"""The pages of docs/tutorial, one for each rung: prose, and generated parts between markers.

A rung that has no page yet is given one that consists of the generated parts.
"""

from collections.abc import Mapping
from pathlib import Path

from docs import code, excerpt, exercises
from docs.cards import TUNED
from docs.exercises import write
from docs.races import raced
from perf import tables
from perf.rows import Row
from perf.select import latest_ladder
from perf.views import newest_suite
from tritemm.compile.asm import own_type
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel

from . import instructions, lessons, measured, page_of, whole, wins

ROOT = Path(__file__).resolve().parents[2]
#: The products of the figures: size and layout.
CASES = ((8192, "NN"), (8192, "NT"), (4096, "NN"), (4096, "NT"))
#: Of each, the rows by their rungs; cuBLAS's is None.
Ladders = Mapping[tuple[int, str], Mapping[str | None, Row]]
PARTS = ("facts", "counters", "kernel", "instructions", "figure", "exercise", "commands")


def pages(rows: list[Row]) -> dict[Path, str]:
    """Every page as it should be, by its path."""
    found, ladders, suite = {}, newest(rows), newest_suite(rows, TUNED)
    for kernel in RUNGS:
        path = page_of(kernel)
        text = path.read_text() if path.exists() else template(kernel)
        timed = figure(kernel, suite, ladders) or raced(rows, lambda r, k=kernel: r.rung == k.name)
        shown = "\n\n".join(filter(None, [timed, wins.table(suite, kernel.name)]))
        text = excerpt.filled(text, parts(kernel, shown))
        found[path] = excerpt.fill(text, path.relative_to(ROOT))
    return found


def newest(rows: list[Row]) -> Ladders:
    """The newest races of the `CASES`."""
    return {
        case: {row.rung: row for row in latest_ladder(rows, size=case[0], layout=case[1])}
        for case in CASES
    }


def template(kernel: Kernel) -> str:
    """A page of a rung that nobody has written about."""
    sentence = f"{kernel.title[0].upper()}{kernel.title[1:]}."
    title = f"# {kernel.number:02} {kernel.name}\n\n{sentence}\n"
    blocks = (f"<!-- begin: {name} -->\n<!-- end: {name} -->\n" for name in PARTS)
    return "\n".join([title, *blocks])


def parts(kernel: Kernel, timed: str) -> dict[str, str]:
    """The generated parts of its page."""
    lesson = lessons()[kernel.name]
    return {
        "facts": facts(kernel),
        "counters": measured.table(lesson),
        "kernel": whole.kernel(kernel),
        "instructions": instructions.table(kernel, lesson.below),
        "figure": timed,
        "exercise": exercise(kernel),
        "commands": commands(kernel),
    }


def facts(kernel: Kernel) -> str:
    """The rung's header; what the CUDA ladder has of it, with links."""
    file = f"tritemm/kernels/{kernel.module.rpartition('.')[2]}.py"
    lines = [f"- **Source:** [{file}](../../{file})"]
    if found := instructions.mirrored(kernel):
        links = (f"[{name}](../../cuda_reference/{name}.cu)" for name in found)
        lines.append(f"- **CUDA twins:** {', '.join(links)}")
    shown = {k: v for k, v in kernel.header.items() if k not in ("Mirrors", "Note")}
    return "\n".join([*lines, *(f"- **{key}:** {escape(value)}" for key, value in shown.items())])


def escape(text: str) -> str:
    """The text as Markdown shows it as it is; code in backticks stays."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("_", "\\_") for part in parts[::2]]
    return "`".join(parts)


def figure(kernel: Kernel, suite: list[Row], ladders: Ladders) -> str:
    """The newest measurements of the rung, the suite's roof, and its joules; or nothing."""
    lines, origins, below_roof = [], [], None
    for (size, layout), ladder in ladders.items():
        row, cublas = ladder.get(kernel.name), ladder.get(None)
        if row is None:
            continue
        origins.append(row)
        if not row.us:
            lines.append(f"| {size}³ {layout} | | | {row.outcome}: {row.reason} | | |")
            continue
        below_roof = below_roof or roofed(suite, row)
        share = f"{below_roof.roof.floor(row.case) / row.us.p50:.1%}" if below_roof else ""
        ratio = tables.spread(row.ratio, row.tie) if cublas else ""
        cells = f"{tables.digits(row.us.p50)} | {row.tflops:.3g} | {share} | {ratio}"
        cells += f" | {below(kernel, row, ladder)}"
        lines.append(f"| {size}³ {layout} | {cells} |")
    if not lines:
        return ""
    return "\n".join([
        "| bf16 | µs | TFLOP/s | of the roof | x cuBLAS (p20-p80) | x the rung below |",
        "|---|--:|--:|--:|--:|--:|", *lines, "",
        f"Sustained; {tables.origin(origins)}.{roof(below_roof)}{joules(kernel)}",
        *(["", escape(kernel.header["Note"])] if "Note" in kernel.header else []),
    ])  # fmt: skip


def below(kernel: Kernel, row: Row, ladder: Mapping[str | None, Row]) -> str:
    """How many times as fast as the rung that it adds to.

    A race compares within its rounds, of several rungs of one number with the fastest alone: where
    that is another one, it is a ratio of the race's medians.
    """
    wanted = kernel.header["Adds to"].partition(":")[0]
    other = ladder.get(wanted)
    if row.below != wanted and other and other.us:
        return f"{other.us.p50 / row.us.p50:.2f} ({wanted})"
    return f"{row.ratio_below.p50:.2f} ({row.below})" if row.ratio_below else ""


def roofed(suite: list[Row], row: Row) -> Row | None:
    """A row of the suite that has a roof, on this row's GPU and for its type."""
    wanted = row.environment.gpu, row.case.kind
    found = (each for each in suite if (each.environment.gpu, each.case.kind) == wanted)
    return next((each for each in found if each.roof), None)


def roof(row: Row | None) -> str:
    """A sentence on a row's roof, and when it was measured."""
    if row is None:
        return ""
    return (
        f" The roof is {row.roof.tflops:.0f} TFLOP/s and {row.roof.gbs:.0f} GB/s, measured with "
        f"the suite on {row.time[:10]}."
    )


def joules(kernel: Kernel) -> str:
    """What a product of `measured.HEADLINE` takes."""
    found = measured.load()["joules"].get(kernel.name)
    if not found:
        return ""
    return (
        f" One product of {measured.HEADLINE} takes {found['joules']:.3g} J, at "
        f"{found['watts']:.0f} W, by the card's energy counter."
    )


def exercise(kernel: Kernel) -> str:
    """What the page asks: for a function, and for a kernel."""
    found = [function_asked(kernel.name)] if kernel.name in exercises.every() else []
    found += [kernel_asked(kernel.name)] if kernel.name in write.every() else []
    return "\n\n".join(found) or "None yet."


def function_asked(rung: str) -> str:
    """The question, how to have an answer checked, and a solution to be opened."""
    first, _, rest = exercises.question(rung).partition("\n\n")
    return "\n".join([
        f"**{first}**", "", rest, "",
        "Write the function into a file and have it checked, without a GPU:", "",
        "```python", f"def {exercises.signature(rung)}:  # in answer.py", "    ...", "```", "",
        "```console", f"$ python -m docs.exercises {rung} answer.py", "```", "",
        *folded("A solution", "```python", exercises.solution(rung), "```"),
    ])  # fmt: skip


def kernel_asked(name: str) -> str:
    """The same for the kernel of a rung or of the primer, and a hint."""
    first, _, rest = write.question(name).partition("\n\n")
    command = f"$ python -m docs.exercises write {name}"
    file = write.name_of(name)
    return "\n".join([
        f"**Write a kernel: {first[0].lower()}{first[1:]}**", "", rest, "",
        f"The first command writes `{file}`, in which your part is marked.",
        "The second checks it, without a GPU.",
        f"Run both from {write.WHERE}:", "",
        "```console", command, f"{command} {file}", "```", "",
        *folded("A hint", write.hint(name)), "",
        *folded("A solution", "```python", write.parts(name), "```"),
    ])  # fmt: skip


def folded(summary: str, *lines: str) -> tuple[str, ...]:
    return f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"


def commands(kernel: Kernel) -> str:
    """What shows the rung's code, as `instructions` counts it, and its speed."""
    problem = f"--problem 4096,4096,4096,{code.LAYOUT}"
    return "\n".join([
        "```console",
        *(f"$ python -m tritemm asm {kernel.name} --sm {sm} {problem}" for sm in kernel.signs),
        f"$ python -m perf ladder --only {kernel.name} --dtype {own_type(kernel)}   # needs a GPU",
        f"$ python -m perf profile {kernel.name}   # needs a GPU and Nsight Compute",
        "```",
    ])  # fmt: skip
