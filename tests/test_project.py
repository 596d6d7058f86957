"""What the project's files say of the project is the same in each."""

import re

import pytest

from docs.site.links import ROOT
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
