"""What the project's files say of the project is the same in each."""

import collections
import re
import sys
from importlib.metadata import distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.site.links import ROOT
from tests import sweep
from tests.conftest import not_drawn
from tools.pin import extras, needs
from tritemm import __version__
from tritemm.machine.needs import _NEEDED

pytestmark = [pytest.mark.host, pytest.mark.once]


def text(name):
    return (ROOT / name).read_text()


def test_the_version_is_said_alike():
    assert re.search(rf"^version: {re.escape(__version__)}$", text("CITATION.cff"), re.MULTILINE)
    (date,) = re.findall(r"^date-released: (\d{4}-\d\d-\d\d)$", text("CITATION.cff"), re.MULTILINE)
    heads = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    assert heads[:2] == ["[Unreleased]", f"[{__version__}] - {date}"]


def test_what_is_needed_is_said_alike():
    """pip refuses what the import refuses, and the page on what is supported says so."""
    bounds = dict(re.findall(r'^ *"(torch|triton)>=([\d.]+)', text("pyproject.toml"), re.MULTILINE))
    assert bounds == {name: "{}.{}".format(*oldest) for name, (_, oldest, _) in _NEEDED.items()}
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text("pyproject.toml"))
    assert f'\nrequires-python = ">={pythons[0]}"\n' in text("pyproject.toml")
    assert re.findall(r"^\| (3\.\d+) \|", text("docs/supported.md"), re.MULTILINE) == pythons


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


def named():
    """pyproject.toml's dependencies, as tools/pin.py reads them."""
    tomllib = pytest.importorskip("tomllib", reason="Python has it since 3.11")
    return extras(tomllib.loads(text("pyproject.toml"))["project"])


def pins(**environment):
    """The packages that constraints.txt pins, for this Python or another, each with its lines."""
    lines = (line.partition("  #")[0] for line in text("constraints.txt").splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return collections.Counter(
        canonicalize_name(each.name)
        for each in found
        if each.marker is None or each.marker.evaluate(environment)
    )


@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_a_package_is_pinned_once(minor):
    release = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.9"}
    assert {name: lines for name, lines in pins(**release).items() if lines > 1} == {}


def unpinned(folders, wanted):
    """Of the packages in these folders, those that `wanted` bring and that no line pins."""
    there = {canonicalize_name(each.name): each for each in distributions(path=folders)}
    pinned, seen, queue = pins(), set(), [Requirement(each) for each in wanted]
    while queue:
        need = queue.pop()
        name = canonicalize_name(need.name)
        if name not in there or (name, frozenset(need.extras)) in seen:
            continue
        seen.add((name, frozenset(need.extras)))
        for each in map(Requirement, there[name].requires or ()):
            asked = ["", *need.extras]
            if each.marker is None or any(each.marker.evaluate({"extra": x}) for x in asked):
                queue.append(each)
    assert len(seen) > len(wanted)
    return {name for name, _ in seen} - set(pinned) - {"tritemm"}


def test_all_that_the_suite_runs_with_is_pinned():
    """Or `make pin` does it."""
    wanted = needs("tritemm[dev,cuda,nvcc]", named())
    assert unpinned(sys.path, [*wanted, *named()[""], "uv"]) == set()


def test_all_that_builds_the_site_is_pinned():
    folders = [str(path) for path in ROOT.glob(".venv-site/lib/python*/site-packages")]
    if not folders:
        pytest.skip("there is no .venv-site; `make site` makes it")
    assert unpinned(folders, needs("tritemm[site]", named())) == set()


def test_an_extra_names_others():
    named = {"": ["a"], "one": ["b>1", "tritemm[two]"], "two": ["c; sys_platform == 'linux'"]}
    assert needs("tritemm[one,two]", named) == ["b>1", *2 * ["c; sys_platform == 'linux'"]]


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
