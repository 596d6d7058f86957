"""The concept pages: snippets run, what they name exists, code in them is the sources'."""

import contextlib
import io
import re

import pytest
import triton

from cuda_reference import source
from cuda_reference.types import find
from docs import concept_pages, races
from docs.excerpt import ROOT
from tritemm.rungs import RUNGS

pytestmark = pytest.mark.host

PAGES = ROOT / "docs" / "concepts"
FILES = sorted(PAGES.glob("*.md"))
by_page = pytest.mark.parametrize("page", FILES, ids=lambda page: page.stem)
#: Blocks of Python that are no excerpts, each with the block that says what it prints.
SNIPPET = re.compile(r"(?<!-->\n)```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


#: What the words before a snippet name as the release of Triton that makes it print that.
NAMED = re.compile(r"Triton\s(\d+\.\d+\.\d+)[^`]*\Z")


def snippets():
    for page in FILES:
        text = page.read_text()
        for nth, found in enumerate(SNIPPET.finditer(text)):
            named = NAMED.search(text[: found.start()])
            yield pytest.param(*found.groups(), named and named[1], id=f"{page.stem}-{nth}")


@pytest.mark.parametrize(("code", "printed", "release"), list(snippets()))
def test_a_snippet_prints_what_the_page_says(code, printed, release):
    if release not in (None, triton.__version__):
        pytest.skip(f"the page has what Triton {release} prints")
    assert len(code.strip().splitlines()) <= 10
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    assert said.getvalue() == printed


@by_page
def test_a_page_has_a_picture_a_formula_and_a_check(page):
    text = page.read_text()
    if page.stem == "map":
        return
    assert text.startswith("# ") and "](../figures/concepts/" in text
    assert "<!-- code: " in text or page.stem == "energy"
    assert SNIPPET.search(text)


@by_page
def test_commands_name_what_exists(page):
    """NAME in `python -m PACKAGE COMMAND NAME`: a CUDA file, a rung, an entry of the type table."""
    for command in re.findall(r"python -m (\S+ (?:asm|run) [^`\n]+)", page.read_text()):
        package, _, name, *rest = command.split()
        names = source.names() if package == "cuda_reference" else {k.name for k in RUNGS}
        assert name in names, command
        if "--entry" in rest:
            find(rest[rest.index("--entry") + 1])


def test_every_generated_part_is_on_a_page():
    text = "".join(page.read_text() for page in FILES)
    names = {name for name in concept_pages.parts() if not name.startswith("note-")}
    used = re.findall(r"<!-- begin: (.+?) -->", text)
    assert names <= set(used) and len(used) == len(set(used))
    assert set(used) <= {*concept_pages.parts(), *races.EMULATED}
