"""Pages that show the source files which the documentation links to."""

from __future__ import annotations

import re
from pathlib import Path

LANGUAGES = {
    ".py": "python", ".cu": "cuda", ".cuh": "cuda", ".h": "cpp", ".md": "markdown",
    ".json": "json", ".toml": "toml", ".yml": "yaml", ".sh": "bash", ".csv": "text",
}  # fmt: skip
#: Bytes of a file that are shown: files of measurements are megabytes long.
MOST = 100_000


def page_of(path: str) -> str:
    """Where the site shows a file of the repository."""
    return f"source/{path}.md"


def source_page(path: str, content: bytes) -> str:
    """The page of one file; search leaves it out, since every word of it stands on others too."""
    text = content[:MOST].decode(errors="replace")
    note = f"The first {MOST} of {len(content)} bytes.\n\n" if len(content) > MOST else ""
    ticks = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", text))])
    language = LANGUAGES.get(Path(path).suffix, "text")
    code = f'{ticks}{language} linenums="1"\n{text.rstrip()}\n{ticks}'
    return f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# `{path}`\n\n{note}{code}\n"


def index_page(paths: list[str]) -> str:
    """The list of the files that are shown."""
    lines = [f"- [`{path}`]({path}.md)" for path in sorted(paths)]
    intro = "The source files that pages of this site link to, as they were when it was built."
    return "\n".join(
        ["---\nsearch:\n  exclude: true\n---\n# Source files", "", intro, "", *lines, ""]
    )
