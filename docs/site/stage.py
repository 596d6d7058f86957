"""Writes what the site is built from into a folder: `python -m docs.site.stage`.

Pages link to files of the repository, as GitHub wants it. In that folder README.md is the home
page, other Markdown at the top and the notebooks are pages, and each other file that a page links
to has a page that shows it. zensical.toml has the generator read the folder.
"""

import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from docs.excerpt import LANGUAGES
from docs.site.links import PROJECT, ROOT, Link, links, markdown, pages

#: The page that README.md becomes, the list of sources, and what `docs.suite_page` writes.
HOME, SOURCES, EXPLORER = "index.md", "source/index.md", "explore.html"
#: Files of docs/ that the site has as they are.
ASSETS = (".png", ".svg", ".css", ".js")
#: Characters of a file that are shown: files of measurements are megabytes long.
MOST = 100_000
#: What a page has beneath its title and its first paragraph.
BUTTONS = {
    HOME: "[Tutorial](tutorial/index.md){ .md-button .md-button--primary }\n"
    "[Quick start](notebooks/quick_start.md){ .md-button }",
    "suite.md": f"[Every problem, to sort and filter]({EXPLORER}){{ .md-button }}",
}


def stage(out: Path, explorer: str) -> None:
    """Write the folder anew; `explorer` is the page of `docs.suite_page`."""
    shutil.rmtree(out, ignore_errors=True)
    others = shutil.ignore_patterns("*.md", "*.py", "*.json", "__pycache__", "site")
    shutil.copytree(ROOT / "docs", out, ignore=others)
    targets = set()
    for path in pages():
        name = path.relative_to(ROOT).as_posix()
        if name != "docs/index.md":  # README.md is home
            text = markdown(path)
            targets |= {resolved(name, link) for link in links(text) if inside(link)}
            write(out / place(name), page(name, text))
    if missing := sorted(name for name in targets if not (ROOT / name).exists()):
        raise SystemExit(f"pages link to what isn't there: {', '.join(missing)}")
    shown = sorted({name for target in targets for name in sources(target)})
    for name in shown:
        write(out / place(name), source_page(name, (ROOT / name).read_text(errors="replace")))
    write(out / SOURCES, source_list(shown))
    home = '<header>\n  <p><a href="index.html">tritemm</a></p>'
    write(out / EXPLORER, explorer.replace("<header>", home, 1))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def place(path: str) -> str:
    """Where the site has a file or a folder of the repository."""
    if path in ("README.md", "docs/index.md"):
        return HOME
    if path in PROJECT:
        return path
    under, suffix = path.removeprefix("docs/"), Path(path).suffix
    if under != path and suffix in (".md", *ASSETS):
        return under
    if under != path and suffix == ".ipynb":
        return under.removesuffix(suffix) + ".md"
    return SOURCES if (ROOT / path).is_dir() else f"source/{path}.md"


def inside(link: Link) -> bool:
    """Whether it leads to another file of the repository."""
    return bool(link.relative and link.path)


def resolved(name: str, link: Link) -> str:
    """The path in the repository that a link of this file means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link.path))


def page(name: str, text: str) -> str:
    """A page, its links from where the repository has things to where the site has them."""
    uri, parts, at = place(name), [], 0
    for link in links(text):
        parts += [text[at : link.start], moved(name, link) if inside(link) else link.target]
        at = link.end
    text = "".join([*parts, text[at:]])
    text = re.sub(r"\A(?:<!--.*?-->\s*)+", "", text, flags=re.DOTALL)  # the title comes first
    text = re.sub(r"(?m)^<details>", "<details markdown>", text)  # Markdown in it, as on GitHub
    if uri in BUTTONS:
        text = re.sub(r"(?m)^(# .*\n\n(?:.+\n)+)", rf"\1\n{BUTTONS[uri]}\n", text, count=1)
    if name.endswith(".ipynb"):
        text += f'\n<p><a href="{Path(name).name}" download>This page as a notebook</a></p>\n'
    return f"---\nhide: [navigation]\n---\n{text}" if uri == HOME else text


def moved(name: str, link: Link) -> str:
    """A link's target on the site; source pages have no anchors of lines."""
    uri = place(resolved(name, link))
    anchor = f"#{link.anchor}" if link.anchor and not uri.startswith("source/") else ""
    return posixpath.relpath(uri, posixpath.dirname(place(name)) or ".") + anchor


def sources(path: str) -> Iterator[str]:
    """What has a source page of a link's target: a text file, or those that its folder holds."""
    at = ROOT / path
    if at.is_dir():
        found = (p.relative_to(ROOT).as_posix() for p in at.iterdir() if p.suffix in LANGUAGES)
    else:
        found = [path] if at.is_file() else []
    return (name for name in found if place(name).startswith("source/"))


def source_page(name: str, text: str) -> str:
    """The page of one file; search leaves it out, since every word of it stands on others too."""
    note = f"The first {MOST} of {len(text)} characters.\n\n" if len(text) > MOST else ""
    text = text[:MOST].rstrip()
    ticks = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", text))])
    language = LANGUAGES.get(Path(name).suffix, "text")
    code = f'{ticks}{language} linenums="1"\n{text}\n{ticks}'
    return f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# `{name}`\n\n{note}{code}\n"


def source_list(names: list[str]) -> str:
    lines = [f"- [`{name}`]({name}.md)" for name in names]
    intro = "The source files that pages of this site link to, as they were when it was built."
    head = "---\nsearch:\n  exclude: true\n---\n# Source files"
    return "\n".join([head, "", intro, "", *lines, ""])


if __name__ == "__main__":
    stage(ROOT / "build" / "docs", (ROOT / "build" / EXPLORER).read_text())
