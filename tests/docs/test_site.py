"""The site's pages in a browser: what sorts, filters and answers to the mouse does, from disk.

`make browser` installs Playwright and the distribution's Chromium. The site's own pages are looked
at where `make site` has built them.
"""

import json
import re
import shutil

import pytest

from docs import suite_page
from docs.generate import suite
from docs.site.links import ROOT
from perf.rows import recorded
from perf.tables import tallies

pytestmark = [pytest.mark.host, pytest.mark.once]

BUILT = ROOT / "build" / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
needs_site = pytest.mark.skipif(
    not (BUILT / "index.html").exists(), reason="the site is not built; `make site` does it"
)
DESK, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}
WIDTH = "document.documentElement.scrollWidth"
#: What a table scrolls in.
TABLES = ".md-typeset__scrollwrap"
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
    api = pytest.importorskip("playwright.sync_api", reason="`make browser` installs Playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)}")
    with api.sync_playwright() as playwright:
        # A container's root has no user namespace for a sandbox; pages are the tests' own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """The console must have nothing to complain of, and nothing may be asked of a network."""
    page, complaints = browser.new_page(), []
    page.set_default_timeout(20_000)

    def asked(request):
        if not request.url.startswith(("file:", "data:", "about:", "blob:")):
            complaints.append(request.url)

    def said(message):
        if message.type == "error":
            complaints.append(message.text)

    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", said)
    page.on("request", asked)
    yield page
    page.close()
    assert complaints == []


@pytest.fixture
def opened(page, explorer):
    """The explorer, freshly loaded."""
    page.goto(explorer.as_uri())
    return page


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


def test_it_filters(opened, records):
    own = of(records, "suite")
    assert opened.evaluate(f"{SHOWN}.length") == len(own)
    opened.fill("#text", "decode M=1")
    names = opened.evaluate(f"{SHOWN}.map(row => row.cells[1].textContent)")
    assert names and len(names) < len(own) and all("M=1" in name for name in names)
    opened.click("form button[type=reset]")
    opened.wait_for_function(f"{SHOWN}.length === {len(own)}")
    for word in ("won", "tied", "lost"):
        opened.select_option("#side", word)
        count = sum(side(record) == word for record in own)
        assert opened.evaluate(f"{SHOWN}.length") == count
        assert opened.locator("#overview circle").count() == count
        assert opened.locator("#summary").inner_text().startswith(f"{count} ")
    opened.select_option("#side", "")
    opened.select_option("#class", "decode")
    assert opened.evaluate(f"{SHOWN}.length") == sum(r["class"] == "decode" for r in own)


def test_each_experiment_has_its_tab(opened, records):
    """And the whole table fits into a window of 1400 pixels."""
    opened.set_viewport_size(DESK)
    for experiment in dict.fromkeys(record["experiment"] for record in records):
        opened.click(f"#tabs button[value={experiment}]")
        assert opened.evaluate(f"{SHOWN}.length") == len(of(records, experiment))
        assert opened.locator("#wide").evaluate("one => one.scrollWidth <= one.clientWidth")
    opened.click("#tabs button[value='']")
    assert opened.evaluate(f"{SHOWN}.length") == len(records)


def test_it_sorts(opened):
    column = 10  # x cuBLAS
    head = f"#problems th:nth-child({column + 1})"
    cells = f"{SHOWN}.map(row => row.cells[{column}].dataset.value)"
    for direction in ("descending", "ascending"):
        opened.click(f"{head} button")
        found = opened.evaluate(cells)
        numbers = [float(value) for value in found if value]
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert not any(found[len(numbers) :])  # what was not timed is last both ways
        assert opened.evaluate(f"document.querySelector({head!r}).ariaSort") == direction


@pytest.mark.parametrize("what", ["#problems tbody tr td", "#overview circle"])
def test_pointing_shows_the_details(opened, records, what):
    details, it = opened.locator("#details"), opened.locator(what).first
    it.hover()
    details.wait_for()
    said = details.inner_text()
    index = it.evaluate("found => found.closest('[data-index]').dataset.index")
    record = records[int(index)]
    for part in (record["id"], record["name"], record["config"], record["origin"], "rounds"):
        assert part in said
    opened.hover("h1")
    details.wait_for(state="hidden")
    it.click()
    opened.hover("h1")  # a click keeps them
    assert details.is_visible()


def test_a_phone_shows_it(opened):
    opened.set_viewport_size(PHONE)
    assert opened.evaluate(WIDTH) <= PHONE["width"]


def test_tables_of_the_site_sort_and_filter(page):
    """Numbers as numbers, words after them, blanks last; one field for all tables."""
    lines = ["10x", "9", "", "1,024", "\u22123", "word"]
    rows = "".join(f"<tr><td>{line}</td><td>{i % 2}</td></tr>" for i, line in enumerate(lines))
    table = f"<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>{rows}</tbody></table>"
    page.set_content(f"<h2>T</h2><div class=sortable>{table}</div>")
    page.add_script_tag(path=ROOT / "docs" / "assets" / "table.js")
    cells = page.locator("td:first-child")
    page.click("th button")
    assert cells.all_text_contents() == ["\u22123", "9", "1,024", "10x", "word", ""]
    page.click("th button")
    assert cells.all_text_contents() == ["word", "10x", "1,024", "9", "\u22123", ""]
    page.fill(".table-filter input", "wor")
    assert page.locator("tbody tr:visible").count() == 1
    assert page.locator("output").inner_text() == "1 of 6 lines"


@needs_site
class TestBuilt:
    """Pages of `make site`, opened from disk."""

    @pytest.fixture
    def at(self, page):
        def at(name, size=DESK, until="load"):
            page.set_viewport_size(size)
            page.goto((BUILT / name).as_uri(), wait_until=until)
            return page

        return at

    def test_nothing_is_fetched_from_elsewhere(self):
        fetched = re.compile(
            r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?(?:https?:)?//"
            r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(?:https?:)?//"
        )
        assert [path for path in BUILT.rglob("*.html") if fetched.search(path.read_text())] == []

    def test_no_table_is_cut_off(self, at):
        """Of all pages, in a window of 1400 pixels."""
        cut = []
        for path in sorted(BUILT.rglob("*.html")):
            if "<table>" not in path.read_text():
                continue
            page = at(path, until="domcontentloaded")
            wide = page.locator(TABLES).evaluate_all(
                "found => found.filter(one => one.scrollWidth > one.clientWidth)"
                ".map(one => one.querySelector('tr').innerText)"
            )
            cut += [(path.name, heads) for heads in wide]
        assert cut == []

    def test_a_phone_keeps_the_first_column(self, at):
        """A table scrolls sideways beneath it, and a shadow says so."""
        page = at("index.html", PHONE)
        table = page.locator(TABLES).first
        assert table.evaluate("one => one.scrollWidth > one.clientWidth")
        assert "gradient" in table.evaluate("one => getComputedStyle(one).backgroundImage")
        first, second = (table.locator(f"tr:nth-child(3) td:nth-child({n})") for n in (1, 2))
        left = second.bounding_box()["x"]
        table.evaluate("one => one.scrollLeft = 150")
        assert second.bounding_box()["x"] == left - 150
        assert 0 <= first.bounding_box()["x"] < 20

    @pytest.mark.parametrize("name", ["index", "performance", "tried", "reference/api"])
    def test_it_loads_and_fits_a_phone(self, at, name):
        page = at(f"{name}.html", PHONE)
        assert page.locator("h1").first.inner_text()
        assert page.evaluate(WIDTH) <= PHONE["width"]

    def test_home_leads_to_the_tutorial_and_the_quick_start(self, at):
        found = (
            at("index.html")
            .locator("a.md-button")
            .evaluate_all("found => found.map(one => one.getAttribute('href'))")
        )
        assert found == ["tutorial/index.html", "notebooks/quick_start.html"]

    def test_what_was_tried_sorts(self, at):
        page = at("tried.html")
        page.locator(".sortable th:nth-child(1) button").first.click()
        first = "[...document.querySelector('.sortable tbody').rows].map(r => r.cells[0].innerText)"
        ideas = page.evaluate(first)
        assert len(ideas) > 2 and ideas == page.evaluate(
            f"{first}.toSorted((a, b) => a.localeCompare(b, 'en', {{numeric: true}}))"
        )

    def test_search_works_from_disk(self, at):
        page = at("tutorial/08_tma.html")
        page.click(".md-search__button")
        page.get_by_role("combobox").press_sequentially("persistent")
        page.get_by_role("option").filter(has_text="Persistent").first.click()
        page.wait_for_url("**/*persistent*")

    def test_the_explorer_is_among_them(self, at):
        page = at("suite.html")
        page.click("a[href='explore.html'].md-button")
        page.wait_for_function("document.title === 'tritemm: every measured problem'")
