"""What MkDocs is told beyond mkdocs.yml, which names this file.

Pages link to files of the repository, as GitHub wants it. Here README.md becomes the home page,
PROJECT's others and the notebooks become pages, and every other file that a page links to gets a
page that shows it.
"""

import json
import logging
import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation

from docs.excerpt import LANGUAGES
from docs.site import notebook
from docs.site.links import PROJECT, ROOT, links

log = logging.getLogger("mkdocs.hooks")
#: The page that README.md becomes, and the one of every problem, which `docs.suite_page` writes.
HOME, EXPLORER = "index.md", "explore.html"
#: Bytes of a file that are shown: files of measurements are megabytes long.
MOST = 100_000
BUTTONS = f"[Every problem, to sort and filter]({EXPLORER}){{ .md-button }}"


def on_files(files: Files, config) -> Files:
    """Add what is made of files outside docs/."""
    add_project(files, config)
    for path in sorted(notebook.FOLDER.glob("*.ipynb")):
        text = notebook.markdown(json.loads(path.read_text()))
        uri = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, uri, content=text + download(path.name)))
    explorer = ROOT / "build" / EXPLORER
    if explorer.exists():
        home = '<header>\n  <p><a href="index.html">tritemm</a></p>'
        text = explorer.read_text().replace("<header>", home, 1)
        files.append(File.generated(config, EXPLORER, content=text))
    else:
        log.warning("build/%s is missing; `make site` writes it", EXPLORER)
    add_sources(files, config)
    return files


def add_project(files: Files, config) -> None:
    if old := files.get_file_from_path(HOME):
        files.remove(old)
    for name in PROJECT:
        if (path := ROOT / name).exists():
            uri = HOME if name == "README.md" else name
            files.append(File.generated(config, uri, abs_src_path=str(path)))


def add_sources(files: Files, config) -> None:
    """A page for each file, outside the pages, that any of them links to."""
    wanted = set()
    for file in files.documentation_pages():
        for link in links(file.content_string):
            path = resolve(file.src_uri, link.path) if link.relative and link.path else None
            if path and site_page(path, files) is None:
                wanted |= shown(path)
    for path in sorted(wanted):
        text = source_page(path, (ROOT / path).read_bytes())
        files.append(File.generated(config, page_of(path), content=text))
    index = index_page(sorted(wanted))
    files.append(File.generated(config, "source/index.md", content=index))


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


def shown(path: str) -> set[str]:
    """The text files at a path of the repository: itself, or what its folder holds."""
    at = ROOT / path
    if at.is_dir():
        found = [p for p in sorted(at.iterdir()) if p.suffix in LANGUAGES]
        return {p.relative_to(ROOT).as_posix() for p in found}
    return {path} if at.is_file() else set()


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """The page's links, from where the repository has things to where the site has them."""
    uri, parts, at = page.file.src_uri, [], 0
    if uri.startswith("source/"):
        return markdown
    for link in links(markdown):
        parts += [markdown[at : link.start], moved(uri, link, files)]
        at = link.end
    text = "".join([*parts, markdown[at:]])
    text = re.sub(r"\A(?:<!--.*?-->\s*)+", "", text, flags=re.DOTALL)  # the title comes first
    if uri == HOME:
        page.meta["hide"] = ["navigation"]
    if uri in (HOME, "suite.md"):
        text = re.sub(r"(?m)^(# .*\n\n(?:.+\n)+)", rf"\1\n{BUTTONS}\n", text, count=1)
    return text


def on_nav(nav: Navigation, config, files: Files) -> Navigation:
    """The interactive page stands among the measurements; it is no page of MkDocs."""
    for section in nav.items:
        if section.is_section and section.title == "Measurements":
            section.children.append(Link("Every problem, to sort and filter", EXPLORER))
    return nav


def moved(uri: str, link, files: Files) -> str:
    """A link's target on the site."""
    if not link.relative or not link.path:
        return link.target
    path = resolve(uri, link.path)
    target, anchor = site_page(path, files), f"#{link.anchor}" if link.anchor else ""
    if target is None:
        if not (ROOT / path).exists():
            return link.target
        target = "source/index.md" if (ROOT / path).is_dir() else page_of(path)
        anchor = ""  # of lines, which source pages don't have
    return posixpath.relpath(target, posixpath.dirname(uri) or ".") + anchor


def resolve(uri: str, target: str) -> str:
    """The path in the repository that a link on this page of the site means."""
    origin = "README.md" if uri == HOME else uri if uri in PROJECT else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def site_page(path: str, files: Files) -> str | None:
    """The page or picture that the site has of a path in the repository."""
    if path in PROJECT:
        return HOME if path == "README.md" else path
    uri = posixpath.relpath(path, "docs") if path.startswith("docs/") else None
    if uri and uri.startswith("notebooks/") and uri.endswith(".ipynb"):
        return uri.removesuffix(".ipynb") + ".md"
    file = files.get_file_from_path(uri) if uri else None
    return uri if file and file.inclusion.is_included() else None


def download(name: str) -> str:
    return f'\n<p><a href="{name}" download>This page as a notebook</a></p>\n'


def on_post_build(config) -> None:
    """Nothing on the pages may be fetched from elsewhere."""
    asked = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?(?:https?:)?//"
        r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(?:https?:)?//"
    )
    for folder, _, names in os.walk(config.site_dir):
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".html" and asked.search(path.read_text()):
                log.warning("%s fetches something from elsewhere", path.relative_to(ROOT))
