"""What a release is: the wheel, and the archive that it is built from, that `make package` builds.

The wheel is installed into an environment that doesn't see the checkout, and multiplies there.
"""

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

from docs.site.links import ROOT, links
from tritemm import __version__

DIST = ROOT / os.environ.get("TRITEMM_DIST", "dist")
pytestmark = [
    pytest.mark.host,
    pytest.mark.once,
    pytest.mark.skipif("TRITEMM_DIST" not in os.environ, reason="`make package` builds it"),
]
WHEEL = DIST / f"tritemm-{__version__}-py3-none-any.whl"


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata():
    return email.message_from_string(
        contents(WHEEL)[f"tritemm-{__version__}.dist-info/METADATA"].decode()
    )


def package():
    """The files of tritemm/ in the checkout."""
    found = (path for path in (ROOT / "tritemm").rglob("*") if path.is_file())
    return {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in found
        if "__pycache__" not in path.parts
    }


def test_a_release_is_two_files():
    assert {path.name for path in DIST.iterdir()} == {WHEEL.name, f"tritemm-{__version__}.tar.gz"}


def test_the_wheel_is_the_package_alone():
    assert {"tritemm/py.typed", "tritemm/arch/gpus/nvidia-h200.json"} < set(package())
    own = f"tritemm-{__version__}.dist-info/"
    names = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    described = {own + name for name in names}
    found = contents(WHEEL)
    assert {name: data for name, data in found.items() if name not in described} == package()
    assert described < set(found)


def test_the_archive_has_what_the_wheel_is_built_from(tmp_path):
    """`make package` built the wheel from the archive; of the checkout it is the same."""
    with tarfile.open(DIST / f"tritemm-{__version__}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    beside = {"PKG-INFO", ".gitignore"}
    beside |= {"pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"}
    assert names == beside | set(package())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    subprocess.run([*command, ROOT], check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / WHEEL.name) == contents(WHEEL)


def test_links_of_the_index_page_lead_to_the_tag():
    """README.md's are relative; all else of it is left as it is."""
    told = metadata()
    home = dict(url.split(", ") for url in told.get_all("Project-URL"))["Homepage"]
    readme = (ROOT / "README.md").read_text()
    expected, at = "", 0
    for link in links(readme):
        expected += readme[at : link.start]
        if link.relative and link.path:
            path = ROOT / link.path
            assert path.exists(), link.target
            kind = "tree" if path.is_dir() else "raw" if path.suffix in (".svg", ".png") else "blob"
            expected += f"{home}/{kind}/v{__version__}/"
        at = link.start
    assert told.get_payload().strip() == (expected + readme[at:]).strip()
    assert not re.search(
        r"<(?:a|img)\b|^ *\[[^]]+\]: ", readme, re.MULTILINE
    )  # others than links()


def test_the_project_has_one_home():
    urls = dict(url.split(", ") for url in metadata().get_all("Project-URL"))
    home = urls["Homepage"]
    assert all(url.startswith(home) for url in urls.values()), urls
    listed = subprocess.run(
        ["git", "grep", "-lF", home.partition("://")[2]], cwd=ROOT, capture_output=True, text=True
    )
    assert listed.stdout.split() == ["pyproject.toml"]


def test_it_multiplies_where_it_is_installed(tmp_path):
    """With this Python's packages, and without the files among them that lead to a checkout."""
    place = tmp_path / "environment"
    venv.create(place, with_pip=False)
    (own,) = place.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("-packages")]
    (own / "shared.pth").write_text("\n".join(shared))
    python = place / "bin" / "python"
    install = "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"
    subprocess.run([sys.executable, *install, "--ignore-installed", WHEEL], check=True)
    said = subprocess.run(
        [python, "-I", ROOT / "tools" / "installed.py"], cwd=tmp_path, check=True, text=True,
        capture_output=True, env=os.environ | {"TRITON_INTERPRET": "1"},
    ).stdout  # fmt: skip
    assert said.startswith(f"tritemm {__version__} multiplies with torch ")
