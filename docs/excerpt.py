"""What is written into pages: generated parts between their markers, and code from the sources.

A part stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`. Code is asked for by
`<!-- code: PATH | FIRST | LAST -->` above a fenced block.

The block is rewritten with the lines of PATH from the first that contains FIRST through the next
that contains LAST, or with that one line where LAST is left out. Closing braces that follow come
with it, as far as they close what it opens. FIRST must stand in one line of the file only, unless
it says which: `FIRST#2` is the second.
"""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What files are shown as, by their suffixes.
LANGUAGES = {
    ".py": "python", ".cu": "cuda", ".cuh": "cuda", ".h": "cpp", ".json": "json", ".sh": "sh",
    ".toml": "toml", ".md": "markdown", ".yml": "yaml", ".csv": "text",
}  # fmt: skip
_MARKER = re.compile(
    r"^<!-- code: (.+?) -->(?:\n```\w*\n(?:.*?\n)??```$)?", re.MULTILINE | re.DOTALL
)


def page(path: Path, parts: Mapping[str, str]) -> str:
    """The page with these parts and its code renewed."""
    return fill(filled(path.read_text(), parts), path.relative_to(ROOT))


def asked(text: str) -> list[str]:
    """The names of the generated parts that a page has a place for."""
    return re.findall(r"^<!-- begin: (.+?) -->$", text, re.MULTILINE)


def filled(text: str, parts: Mapping[str, str]) -> str:
    """The text with each generated part between its markers."""
    for name, part in parts.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = pattern.sub(lambda _, b=begin, p=part, e=end: f"{b}\n{p}\n{e}", text)
    return text


def fill(text: str, page: str | Path) -> str:
    """The text with each marked block renewed; `page` is what an error names.

    Raises:
        ValueError: a marker names a file that isn't there, text that isn't in it, or text that is
            there more than once.
    """

    def block(found: re.Match) -> str:
        path, *ends = (part.strip() for part in found[1].split(" | "))
        language = LANGUAGES.get(Path(path).suffix, "")
        code = _excerpt(path, *ends, page=str(page))
        return f"<!-- code: {found[1]} -->\n```{language}\n{code}\n```"

    return _MARKER.sub(block, text)


def _excerpt(path: str, *ends: str, page: str) -> str:
    if len(ends) not in (1, 2):
        raise ValueError(f"{page}: a marker is PATH | FIRST | LAST, or PATH | FIRST: {path}")
    file = ROOT / path
    if not file.is_file():
        raise ValueError(f"{page}: there is no file {path}")
    lines = file.read_text().splitlines()
    first = _first(lines, ends[0], f"{page}: {path}")
    last = first
    if len(ends) == 2:
        after = (i for i in range(first + 1, len(lines)) if ends[1] in lines[i])
        last = next(after, None)
        if last is None:
            raise ValueError(f"{page}: {path} has no line with {ends[1]!r} after {ends[0]!r}")
    taken = lines[first : last + 1]
    for line in lines[last + 1 :]:
        text = "".join(taken)
        if line.strip() not in ("}", "};") or text.count("{") <= text.count("}"):
            break
        taken.append(line)
    return _dedented(taken)


def _dedented(lines: list[str]) -> str:
    """Pragmas stand in the first column, and move with the code around them."""
    pragma = re.compile(r"^(?=#pragma)")
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip() and line[0] != "#"]
    space = " " * min(indents, default=0)
    return textwrap.dedent("\n".join(pragma.sub(space, line) for line in lines))


def _first(lines: list[str], words: str, where: str) -> int:
    """The line that contains the words, or the n-th where they end in #n."""
    numbered = re.fullmatch(r"(.+)#(\d+)", words)
    sought, nth = (numbered[1], int(numbered[2])) if numbered else (words, 1)
    found = [i for i, line in enumerate(lines) if sought in line]
    if len(found) < nth:
        raise ValueError(f"{where} has {len(found)} lines with {sought!r}")
    if not numbered and len(found) > 1:
        raise ValueError(f"{where} has {len(found)} lines with {sought!r}; write {sought}#1 or on")
    return found[nth - 1]
