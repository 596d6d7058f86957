"""The page of environment variables names all that the sources read."""

import re
from pathlib import Path

import pytest

from docs.site.links import ROOT

pytestmark = [pytest.mark.host, pytest.mark.once]

#: Where variables are read, files of any kind that has code.
FOLDERS = ("tritemm", "perf", "tests", "tools", "docs", "examples", "cuda_reference")
#: Those of every process, and a name that a test makes up.
OTHERS = {"PATH", "PYTHONPATH", "HOME", "TRITEMM_KEPT"}
OWN = re.compile(r"\bTRITEMM_[A-Z_]*[A-Z]\b")
READ = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()\s*["'](\w+)""")


def variables(text):
    """The variables that a source names of tritemm's, or reads."""
    return {*OWN.findall(text), *READ.findall(text)}


def read():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    files += [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "tools").glob("*.sh")]
    files.remove(Path(__file__))  # whose examples are made up
    return set().union(*(variables(path.read_text()) for path in files)) - OTHERS


def named():
    rows = re.findall(r"^\| (`[A-Z].*?) \|", page(), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def page():
    return (ROOT / "docs" / "reference" / "environment.md").read_text()


def test_every_variable_is_on_the_page_once():
    names = named()
    assert len(names) == len(set(names))
    assert read() - set(names) == set()
    made_up = {name for name in names if name.startswith("TRITEMM_")} - read()
    assert made_up == set()


def test_a_row_has_a_name_values_an_effect_and_a_default():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 10 and {len(row.split(" | ")) for row in rows} == {4}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('os.environ.get("SOME_PLACE")', {"SOME_PLACE"}),
        ("int(os.environ['RANK'])", {"RANK"}),
        ('os.getenv("X1")', {"X1"}),
        ("$(filter all,$(TRITEMM_NEW))", {"TRITEMM_NEW"}),
        ("environment.get('gpu')", set()),
        ("_TRITEMM_FLAG", set()),
    ],
)
def test_what_counts_as_reading(text, found):
    assert variables(text) == found
