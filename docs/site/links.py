"""Links in the repository's Markdown: where they stand, and which headings they can name.

Pages are read on GitHub and on the site, so a link is relative to the file that it stands in, and
an anchor is what GitHub makes of a heading.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

from . import notebook

ROOT = Path(__file__).resolve().parents[2]
#: Of the repository's top: the pages that the site has too.
PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

_FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_TARGET = re.compile(r"\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?) *#* *$", re.MULTILINE)
_NAMED = re.compile(r"<[^>]+\b(?:id|name)=\"([^\"]+)\"")


@dataclasses.dataclass(frozen=True)
class Link:
    """A link's target as it is written, and where in the text it stands."""

    target: str
    start: int
    end: int

    @property
    def path(self) -> str:
        """Before the anchor; empty where the link stays on its page."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]

    @property
    def relative(self) -> bool:
        """Whether it is a file of the repository, and no address."""
        return not re.match(r"[a-z][a-z0-9+.-]*:|//|/", self.target, re.IGNORECASE)


def links(text: str) -> Iterator[Link]:
    """Those of a Markdown text, in order, and none that stands in code."""
    for found in _TARGET.finditer(without_code(text)):
        yield Link(text[found.start(1) : found.end(1)], *found.span(1))


def without_code(text: str) -> str:
    """The text with blanks in place of code, at the same places."""

    def blank(found: re.Match) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return _CODE.sub(blank, _FENCED.sub(blank, text))


def code(text: str) -> Iterator[str]:
    """What stands in backticks within lines."""
    for found in _CODE.finditer(_FENCED.sub("", text)):
        yield found[0].strip("`").strip()


def anchors(text: str) -> set[str]:
    """What a link to this Markdown can name behind `#`; a heading that repeats is numbered."""
    found: set[str] = set(_NAMED.findall(text))
    counts: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        name = slug(heading)
        count = counts[name] = counts.get(name, -1) + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def slug(heading: str) -> str:
    """A heading's anchor, by GitHub's rule: letters, digits and hyphens, blanks as hyphens."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("\\", "")
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


def pages() -> list[Path]:
    """Every page that readers are sent to: Markdown, and notebooks."""
    top = [ROOT / name for name in PROJECT if (ROOT / name).exists()]
    docs = ROOT / "docs"
    return top + sorted([*docs.rglob("*.md"), *docs.rglob("*.ipynb")])


def markdown(page: Path) -> str:
    """The text of a page."""
    text = page.read_text()
    return notebook.markdown(json.loads(text)) if page.suffix == ".ipynb" else text
