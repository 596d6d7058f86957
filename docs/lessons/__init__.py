"""What the pages of docs/tutorial derive: facts, counters, instructions, figures, exercises.

On a GPU `python -m docs.record counters` and `joules` measure, without one `code` compiles; `make
docs` fills the pages from what they leave.
"""

import dataclasses
import functools
import re
from pathlib import Path

from perf.case import Case
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel

FOLDER = Path(__file__).resolve().parents[1] / "tutorial"
#: The product of the classic rungs' lessons.
SQUARE = Case(4096, 4096, 4096, "NT", "bf16")
#: On a page, above the counters: the rung below, the product, and the counters that are shown.
_ASKED = re.compile(
    r"^<!-- lesson: (\w+) \| (\d+) x (\d+) x (\d+) (\w+), (\w+) \| (.+) -->$", re.MULTILINE
)


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A rung, the rung that its page starts from, the product on which they are compared there, and
    which of `measured.LABELS` show the problem.

    Where a rung's idea needs another shape than a square, the product is of that.
    """

    rung: str
    below: str | None = None
    case: Case = SQUARE
    counters: tuple[str, ...] = ("duration", "tensor pipe busy")


def page_of(kernel: Kernel) -> Path:
    """`docs/tutorial/03_tiled.md`."""
    return FOLDER / f"{kernel.number:02}_{kernel.name}.md"


@functools.cache
def lessons() -> dict[str, Lesson]:
    """What each rung's page asks for, in the order of the ladder."""
    found = {}
    for kernel in RUNGS:
        page = page_of(kernel)
        asked = _ASKED.search(page.read_text()) if page.exists() else None
        if asked is None:
            found[kernel.name] = Lesson(kernel.name)
            continue
        below, *sizes, layout, dtype, counters = asked.groups()
        case = Case(*map(int, sizes), layout, dtype)
        below = None if below == "nothing" else below
        found[kernel.name] = Lesson(kernel.name, below, case, tuple(counters.split(", ")))
    return found
