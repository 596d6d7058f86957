"""Pins in constraints.txt all that the packages bring which it names by hand.

    python -m tools.pin

uv resolves what the gate's environments install, with the newest releases that the versions above
`MARK` allow, for each Python that the project supports; the rest of the file is written anew. Only
versions are kept: a lock file would hold addresses of a registry, and hashes differ between
PyTorch's CPU and CUDA builds.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "constraints.txt"
MARK = "# Below, written by `make pin`: all that these bring.\n"
#: What each environment installs (tools/setup.sh), and the oldest Python that it can have.
ENVIRONMENTS = {"tritemm[dev,cuda,nvcc]": "3.10", "tritemm[site]": "3.11.5"}
PROJECT = """
[project]
name = "environment"
version = "0"
requires-python = ">={python}"
dependencies = {needs}
[tool.uv]
environments = [
    "sys_platform == 'linux' and platform_machine == 'x86_64' and implementation_name == 'cpython'"
]
"""


def extras(project: dict) -> dict[str, list[str]]:
    """Of pyproject.toml: extra -> what it names; the empty one is what everybody gets."""
    return {"": project["dependencies"], **project["optional-dependencies"]}


def needs(requirement: str, named: dict[str, list[str]]) -> list[str]:
    """What one of tritemm's own requirements, such as tritemm[dev], names of other packages."""
    asked = Requirement(requirement)
    if asked.name != "tritemm":
        return [requirement]
    found = [need for extra in sorted(asked.extras) for need in named[extra]]
    return [other for need in found for other in needs(need, named)]


def resolved(wanted: list[str], python: str, constraints: list[str]) -> list[str]:
    """The lines that pin `wanted` and all that they bring."""
    with tempfile.TemporaryDirectory() as folder:
        project, limits = Path(folder, "pyproject.toml"), Path(folder, "limits.txt")
        project.write_text(PROJECT.format(python=python, needs=wanted))
        limits.write_text("\n".join(constraints))
        options = "--universal", "--no-header", "--no-annotate", "--python-version", python
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *options]
        said = subprocess.run(
            [*command, "-c", str(limits), str(project)], stdout=subprocess.PIPE, text=True,
            check=True,
        ).stdout  # fmt: skip
    return said.splitlines()


def name(line: str) -> str:
    return canonicalize_name(Requirement(line.partition("  #")[0]).name)


def main() -> None:
    import tomllib  # of Python 3.11

    named = extras(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    by_hand = FILE.read_text().partition(MARK)[0]
    chosen = [line for line in by_hand.splitlines() if line and not line.startswith("#")]
    found: list[str] = []
    for environment, python in ENVIRONMENTS.items():
        wanted = [*named[""], *needs(environment, named)]
        if environment == "tritemm[site]":
            wanted = needs(environment, named)  # alone
        lines = resolved(wanted, python, [*chosen, *found])
        # What an older Python has another version of keeps its lines; for all else the later
        # environment has the same version, and may want it on more systems.
        split = {each for each, count in Counter(map(name, found)).items() if count > 1}
        again = set(map(name, lines)) - split
        found = [line for line in found if name(line) not in again]
        found += [line for line in lines if name(line) in again - set(map(name, chosen))]
    FILE.write_text(by_hand + MARK + "".join(f"{line}\n" for line in sorted(found)))


if __name__ == "__main__":
    main()
