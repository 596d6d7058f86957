"""What the project's files say of the project is the same in each."""

import re

import pytest

from docs.site.links import ROOT
from tests import sweep
from tests.conftest import not_drawn
from tritemm import __version__

pytestmark = [pytest.mark.host, pytest.mark.once]


def text(name):
    return (ROOT / name).read_text()


def test_the_version_is_said_alike():
    assert re.search(rf"^version: {re.escape(__version__)}$", text("CITATION.cff"), re.MULTILINE)
    assert f"\n## [{__version__}]" in text("CHANGELOG.md")


def test_who_wrote_it_and_what_it_is():
    """CITATION.cff's authors, licence and keywords are pyproject.toml's."""
    project, citation = text("pyproject.toml"), text("CITATION.cff")
    (author,) = re.findall(r'^authors = \[\{ name = "(.*)" \}\]$', project, re.MULTILINE)
    (licence,) = re.findall(r'^license = "(.*)"$', project, re.MULTILINE)
    (keywords,) = re.findall(r"^keywords = \[(.*)\]$", project, re.MULTILINE)
    assert f"authors:\n  - name: {author}\n" in citation and f"\nlicense: {licence}\n" in citation
    assert re.findall(r"^  - ([^:\n]+)$", citation, re.MULTILINE) == re.findall(
        r'"(.*?)"', keywords
    )


def test_what_builds_the_site_is_pinned():
    """tools/setup.sh reads the extra by its one line."""
    (extra,) = re.findall(r"^site = \[(.*)\]$", text("pyproject.toml"), re.MULTILINE)
    pinned = set(re.findall(r"^([\w-]+)==", text("constraints.txt"), re.MULTILINE))
    assert {name.partition("[")[0] for name in re.findall(r'"(.*?)"', extra)} <= pinned


class Case:
    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name):
        return name in self.marks


@pytest.mark.parametrize(("wide", "one_in", "left"), [(1, 1, 30), (4, 1, 3 + 1 + 19), (1, 4, 7)])
def test_of_many_cases_some_are_drawn(wide, one_in, left):
    """One in four of a wide test, and at least one; or of all. The same whatever their order; and
    of all each that depends on Triton's release."""
    cases = [Case(f"a.py::wide[{i}]", "wide") for i in range(10)]
    cases += [Case("a.py::alone", "wide"), *(Case(f"b.py::narrow[{i}]") for i in range(19))]
    drawn = set(cases) - not_drawn(cases, wide, one_in, code="")
    assert len(drawn) == left
    latest = [Case(f"c.py::latest[{i}]", "latest") for i in range(9)]
    assert not not_drawn(latest, wide, one_in, code="")
    assert drawn == set(cases) - not_drawn(cases[::-1], wide, one_in, code="")
    others = set(cases) - not_drawn(cases, wide, one_in, code="other")
    assert (drawn == others) == (wide == one_in == 1)


def test_of_many_jobs_some_are_drawn():
    jobs = list(range(20))
    some = sweep.drawn(jobs, 4, every=False, code="")
    assert len(set(some)) == 4 and some == sorted(some)
    assert some == sweep.drawn(jobs, 4, every=False, code="")
    assert some != sweep.drawn(jobs, 4, every=False, code="other")
    assert sweep.drawn(jobs, 4, every=True) == sweep.drawn(jobs, 30, every=False) == jobs
