"""Links of the documentation lead somewhere, without a network; so do the paths that it names."""

import re
from pathlib import Path

import pytest

from docs.site.links import ROOT, anchors, code, links, markdown, pages
from tools import mutants

pytestmark = [pytest.mark.host, pytest.mark.once]

#: What a word in backticks must begin with to be meant as a path of the repository.
FOLDERS = ("cuda_reference/", "docs/", "examples/", "perf/", "tests/", "tools/", "tritemm/", ".ci/")
#: Paths in examples that are made by them, or stand for many.
MADE = re.compile(r"[*<>{}…]|NAME|NN_|\.\.\.|05_toy")


def said(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=said)
def test_links_lead_somewhere(page):
    """To a file that is there, and to one of its headings; GitHub and the site have both."""
    broken = []
    for link in links(markdown(page)):
        if not link.relative:
            continue
        target = (page.parent / link.path).resolve() if link.path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            broken.append(f"{link.target}: there is no such file")
        elif (
            link.anchor
            and target.suffix == ".md"
            and link.anchor not in anchors(target.read_text())
        ):
            broken.append(f"{link.target}: there is no such heading")
    assert not broken


@pytest.mark.parametrize("page", pages(), ids=said)
def test_named_paths_exist(page):
    """As `perf/suite.csv`, from the top; also before a blank or a colon, as in a command."""
    missing = []
    for text in code(markdown(page)):
        for word in text.split():
            path = word.rstrip(".,:;)").partition("#")[0].partition("::")[0]
            if path.startswith(FOLDERS) and not MADE.search(path) and not (ROOT / path).exists():
                missing.append(path)
    assert not missing


def test_every_page_is_reached_from_the_index():
    """Pages of docs/, by links alone: none stands where no reader comes."""
    seen, wanted = set(), [ROOT / "README.md", ROOT / "docs" / "index.md"]
    while wanted:
        page = wanted.pop()
        if page in seen:
            continue
        seen.add(page)
        found = [link for link in links(markdown(page)) if link.relative and link.path]
        targets = [(page.parent / link.path).resolve() for link in found]
        wanted += [t for t in targets if t.suffix in (".md", ".ipynb") and t.exists()]
    assert sorted(map(said, set(pages()) - seen)) == []


def test_the_reference_has_every_public_name():
    import tritemm

    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    shown = set(re.findall(r"^::: tritemm\.(\w+)$|^ +heading: tritemm\.(\w+)$", page, re.MULTILINE))
    shown = {one or other for one, other in shown}
    modules = {"nn", "tuning"}  # their names stand one by one
    assert set(tritemm.__all__) - modules <= shown


def named_tests():
    """Those of docs/traps.md, of the concepts' map, and of the faults that tools/mutants.py plants.

    On the map, the words of a test are its name.
    """
    traps, concepts = (ROOT / "docs" / name for name in ("traps.md", "concepts/map.md"))
    yield from re.findall(r"^- `(tests/[\w/]+\.py)::(\w+)`$", traps.read_text(), re.MULTILINE)
    in_a_row = r"\[([^\]]+)\]\(\.\./\.\./(tests/[\w/]+\.py)\) \|$"
    for words, file in re.findall(in_a_row, concepts.read_text(), re.MULTILINE):
        yield file, "test_" + words.replace(" ", "_")
    for fault in mutants.FAULTS:
        assert fault.tests
        yield from (tuple(test.split("::")) for test in fault.tests)


@pytest.mark.parametrize(("file", "name"), sorted(set(named_tests())))
def test_a_test_that_is_named_exists(file, name):
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    assert name.startswith("test_")


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("[a](b.md) ![c](d.png)", ["b.md", "d.png"]),
        ("[`x[0]`](b.md#c)", ["b.md#c"]),
        ("`[a](b.md)` and ``[a](c.md)``", []),
        ("```\n[a](b.md)\n```\n[c](d.md)", ["d.md"]),
    ],
)
def test_links_are_found(text, targets):
    assert [link.target for link in links(text)] == targets


def test_anchors_are_githubs():
    text = "# A b\n## `c_d` & e: 1.5x\n## A b\n```\n# no\n```\n### [F](g.md)\n"
    assert anchors(text) == {"a-b", "c_d--e-15x", "a-b-1", "f"}
