"""What the site is built from: links of pages lead to where the site has things."""

import posixpath

import pytest

from docs.site import stage
from docs.site.links import links

pytestmark = [pytest.mark.host, pytest.mark.once]


@pytest.mark.parametrize(
    ("page", "target", "moved"),
    [
        ("README.md", "docs/tutorial/index.md", "tutorial/index.md"),
        ("README.md", "CONTRIBUTING.md#house-rules", "CONTRIBUTING.md#house-rules"),
        ("README.md", "tritemm/kernels", "source/index.md"),
        ("docs/tutorial/08_tma.md", "../../README.md#the-ladder", "../index.md#the-ladder"),
        ("docs/index.md", "notebooks/quick_start.ipynb", "notebooks/quick_start.md"),
        ("docs/traps.md", "../tests/conftest.py#L10", "source/tests/conftest.py.md"),
        ("docs/traps.md", "figures/ladder.png", "figures/ladder.png"),
        ("docs/traps.md", "figures/sweep-K.csv", "source/docs/figures/sweep-K.csv.md"),
        ("docs/traps.md", "#types", "#types"),
        ("docs/traps.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_move(page, target, moved):
    assert f"[b]({moved})\n" in stage.page(page, f"# A\n\n[b]({target})\n")


def test_code_does_not_move():
    text = "# A\n\n```\n[b](../README.md)\n```\n"
    assert stage.page("docs/traps.md", text) == text


def test_markdown_in_details_is_read():
    """As GitHub does: the generator wants to be told."""
    text = "# A\n\n<details><summary>B</summary>\n\n[c](traps.md)\n\n</details>\n"
    assert "<details markdown><summary>" in stage.page("docs/types.md", text)


def test_home_has_its_buttons():
    text = stage.page("README.md", "# A\n\nFor all.\n\nMore.\n")
    order = ["For all.", "(tutorial/index.md)", "(notebooks/quick_start.md)", "More."]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_every_link_leads_to_a_file(tmp_path):
    """Of all pages, notebooks and lists; the generator looks at anchors."""
    stage.stage(tmp_path, "<header></header>")
    broken, seen = [], 0
    for path in tmp_path.rglob("*.md"):
        uri = path.relative_to(tmp_path).as_posix()
        if uri.startswith("source/") and uri != stage.SOURCES:
            continue
        for link in links(path.read_text()):
            if stage.inside(link):
                seen += 1
                target = posixpath.normpath(posixpath.join(posixpath.dirname(uri), link.path))
                if not (tmp_path / target).is_file():
                    broken.append((uri, link.target))
    assert broken == [] and seen > 1000


def test_a_link_to_nothing_stops_it(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# A\n\n![b](none.png)\n")
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    monkeypatch.setattr(stage, "pages", lambda: [page])
    (tmp_path / "docs").mkdir()
    with pytest.raises(SystemExit, match=r"none\.png"):
        stage.stage(tmp_path / "out", "")
