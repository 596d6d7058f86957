"""On which shapes of the suite `tritemm.matmul` takes a rung, and how it does there.

The squares of the ladder's table suit the middle of the ladder. Most rungs above are made for other
shapes, which the suite has.
"""

from collections.abc import Iterable

from docs.races import HEAD
from perf import tables
from perf.problems import read_suite
from perf.rows import Row

#: Shapes that a page lists.
MOST = 5


def taken(suite: Iterable[Row], rung: str) -> list[tables.Result]:
    """The results of the shapes for which `matmul` took the rung, the best first.

    Odd ones come last: what makes cuBLAS slow there are the addresses of lines, and beating it is
    not the rung's merit.
    """
    found = [result for result in tables.against_cublas(list(suite)) if result.ours.rung == rung]
    timed = [result for result in found if result.ratio]
    return sorted(timed, key=lambda r: (not odd(r.ours), r.ratio.p50), reverse=True)


def odd(row: Row) -> bool:
    """Whether a size is so odd that lines don't begin at multiples of 16 bytes."""
    return any(size > 1 and size % 8 for size in (row.case.M, row.case.N, row.case.K))


def best(suite: Iterable[Row], rung: str) -> str:
    """The best ratio and its shape, for a table of all rungs; "" where `matmul` never takes it."""
    own = [result for result in taken(suite, rung) if not odd(result.ours)]
    if not own:
        return ""
    return f"{own[0].ratio.p50:.2f}: {own[0].ours.case}"


def table(suite: Iterable[Row], rung: str) -> str:
    """A sentence and the best shapes, for the rung's page; "" where `matmul` never takes it."""
    own = taken(suite, rung)
    if not own:
        return ""
    count, whole = len(own), len(read_suite())
    sentence = (
        f"On {count} of the {whole} shapes of [the suite](../suite.md) `tritemm.matmul` takes this "
        f"rung{', with these ratios' if count <= MOST else f'; the {MOST} best ratios'}:"
    )
    shown = tables.Table.of(HEAD, own[:MOST], tables.RESULT)
    return "\n\n".join(
        [sentence, tables.markdown([shown, f"Sustained; {tables.origin([r.ours for r in own])}."])]
    )
