"""The site's pages in a browser: what sorts, filters and answers to the mouse does, from disk.

Chromium of the distribution's packages is enough (`apt-get install chromium`). Pages of MkDocs are
looked at where `make site` has built them.
"""

import json
import re

import pytest

from docs import suite_page
from docs.generate import suite
from docs.site.links import ROOT
from perf.rows import recorded
from perf.tables import tallies
from tests.docs import chromium

pytestmark = [pytest.mark.host, pytest.mark.once]

BUILT = ROOT / "build" / "site"
needs_browser = pytest.mark.skipif(
    chromium.found() is None, reason=f"there is no browser: none of {', '.join(chromium.NAMES)}"
)
needs_site = pytest.mark.skipif(
    not (BUILT / "index.html").exists(), reason="the site is not built; `make site` does it"
)
SHOWN = "[...document.querySelectorAll('#problems tbody tr')].filter(row => !row.hidden)"


@pytest.fixture(scope="module")
def records():
    return suite_page.records()


@pytest.fixture(scope="module")
def explorer(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "explore.html"
    path.write_text(suite_page.page(records))
    return path


@pytest.fixture(scope="module")
def browser():
    with chromium.Browser() as browser:
        yield browser


@pytest.fixture
def quiet(browser):
    """The console must have nothing to complain of, and nothing may be asked of a network."""
    browser.errors.clear(), browser.requests.clear()
    yield browser
    assert browser.errors == []
    assert [r for r in browser.requests if not r.startswith(("file:", "data:", "about:"))] == []


@pytest.fixture
def opened(quiet, explorer):
    """The explorer, freshly loaded."""
    quiet.open(explorer.as_uri())
    return quiet


def choose(browser, name, value):
    """As a choice from one of the selects."""
    browser.run(
        f"(() => {{ const found = document.getElementById({name!r}); found.value = {value!r};"
        "found.dispatchEvent(new Event('input', {bubbles: true})) })()"
    )


def side(record):
    """By the page's words; as `perf.tables` counts."""
    if record["x"] is None:
        return "untimed"
    return "tied" if record["tie"] else "won" if record["x"][1] > 1 else "lost"


def of(records, experiment):
    return [record for record in records if record["experiment"] == experiment]


def test_the_explorer_is_one_small_file(records, explorer):
    text = explorer.read_text()
    assert len(text.encode()) < 600_000 and "{{" not in text
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", text)  # it needs no other file
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["rows"]) == len(records) and data["keys"] == list(records[0])


def test_records_are_what_the_suite_says(records):
    every = tallies(suite(recorded()))[-1]
    sides = [side(record) for record in of(records, "suite")]
    counts = [sides.count(name) for name in ("won", "tied", "lost")]
    assert counts == [int(n) for n in every.sides] and len(sides) == len(every.results)


@needs_browser
def test_it_filters(opened, records):
    own = of(records, "suite")
    assert opened.run(f"{SHOWN}.length") == len(own)
    opened.type("#text", "decode M=1")
    names = opened.run(f"{SHOWN}.map(row => row.cells[1].textContent)")
    assert names and len(names) < len(own) and all("M=1" in name for name in names)
    opened.click("form button[type=reset]")
    opened.wait_for(f"{SHOWN}.length === {len(own)}")
    for word in ("won", "tied", "lost"):
        choose(opened, "side", word)
        count = sum(side(record) == word for record in own)
        assert opened.run(f"{SHOWN}.length") == count
        assert opened.run("document.querySelectorAll('#overview circle').length") == count
        assert opened.run("document.getElementById('summary').textContent").startswith(f"{count} ")
    choose(opened, "side", "")
    choose(opened, "class", "decode")
    assert opened.run(f"{SHOWN}.length") == sum(r["class"] == "decode" for r in own)


@needs_browser
def test_each_experiment_has_its_tab(opened, records):
    for experiment in dict.fromkeys(record["experiment"] for record in records):
        opened.click(f"#tabs button[value={experiment}]")
        assert opened.run(f"{SHOWN}.length") == len(of(records, experiment))
    opened.click("#tabs button[value='']")
    assert opened.run(f"{SHOWN}.length") == len(records)


@needs_browser
def test_it_sorts(opened):
    column = 10  # x cuBLAS
    head = f"#problems th:nth-child({column + 1})"
    cells = f"{SHOWN}.map(row => row.cells[{column}].dataset.value)"
    for direction in ("descending", "ascending"):
        opened.click(f"{head} button")
        found = opened.run(cells)
        numbers = [float(value) for value in found if value]
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert not any(found[len(numbers) :])  # what was not timed is last both ways
        assert opened.run(f"document.querySelector({head!r}).ariaSort") == direction


@needs_browser
@pytest.mark.parametrize("what", ["#problems tbody tr td", "#overview circle"])
def test_pointing_shows_the_details(opened, records, what):
    opened.point(what)
    opened.wait_for("!document.getElementById('details').hidden")
    said = opened.run("document.getElementById('details').innerText")
    index = int(
        opened.run(f"document.querySelector({what!r}).closest('[data-index]').dataset.index")
    )
    record = records[index]
    for part in (record["id"], record["name"], record["config"], record["origin"], "rounds"):
        assert part in said
    opened.point("h1")
    opened.wait_for("document.getElementById('details').hidden")
    opened.click(what)
    opened.point("h1")  # a click keeps them
    assert not opened.run("document.getElementById('details').hidden")


@needs_browser
def test_a_phone_shows_it(browser, explorer):
    browser.open(explorer.as_uri(), width=380, height=700)
    assert browser.run("document.documentElement.scrollWidth") <= 380


@needs_browser
def test_tables_of_the_site_sort_and_filter(browser, tmp_path):
    """Numbers as numbers, words after them, blanks last; one field for all tables."""
    lines = ["10x", "9", "", "1,024", "\u22123", "word"]
    rows = "".join(f"<tr><td>{line}</td><td>{i % 2}</td></tr>" for i, line in enumerate(lines))
    table = f"<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>{rows}</tbody></table>"
    script = (ROOT / "docs" / "assets" / "table.js").read_text()
    page = tmp_path / "table.html"
    page.write_text(f"<h2>T</h2><div class=sortable>{table}</div><script>{script}</script>")
    browser.open(page.as_uri())
    cells = "[...document.querySelectorAll('td:first-child')].map(cell => cell.textContent)"
    browser.click("th button")
    assert browser.run(cells) == ["\u22123", "9", "1,024", "10x", "word", ""]
    browser.click("th button")
    assert browser.run(cells) == ["word", "10x", "1,024", "9", "\u22123", ""]
    browser.type(".table-filter input", "wor")
    shown = "[...document.querySelectorAll('tbody tr')].filter(row => !row.hidden).length"
    assert browser.run(shown) == 1
    assert browser.run("document.querySelector('output').textContent") == "1 of 6 lines"


@needs_browser
@needs_site
class TestBuilt:
    """Pages of `make site`, opened from disk."""

    @pytest.fixture
    def page(self, quiet):
        def page(name, **size):
            quiet.open((BUILT / name).as_uri(), **size)
            return quiet

        return page

    @pytest.mark.parametrize("name", ["index", "performance", "tried", "reference/api"])
    def test_it_loads_and_fits_a_phone(self, page, name):
        browser = page(f"{name}.html", width=380)
        assert browser.run("document.querySelector('h1').textContent.length") > 0
        assert browser.run("document.documentElement.scrollWidth") <= 380

    def test_what_was_tried_sorts(self, page):
        browser = page("tried.html")
        browser.wait_for("document.querySelector('.sortable th button') !== null")
        browser.click(".sortable th:nth-child(1) button")
        first = "[...document.querySelector('.sortable tbody').rows].map(r => r.cells[0].innerText)"
        ideas = browser.run(first)
        assert len(ideas) > 2 and ideas == browser.run(
            f"{first}.toSorted((a, b) => a.localeCompare(b, 'en', {{numeric: true}}))"
        )

    def test_search_works_from_disk(self, page):
        browser = page("index.html", width=1300)
        browser.type(".md-search__input", "persistent")
        browser.wait_for("document.querySelectorAll('.md-search-result__item').length > 1")

    def test_the_explorer_is_among_them(self, page):
        browser = page("suite.html", width=1300)
        browser.click("a[href='explore.html'].md-button")
        browser.wait_for("document.title === 'tritemm: every measured problem'")
