"""Whether the wheel installs and multiplies with each Python, and the oldest and newest torch.

    python tools/package_matrix.py dist/tritemm-*.whl

For each pair uv resolves what the wheel needs. Where a Python of that release is found here, all of
it is installed into a clean environment, gigabytes of CUDA among it, and tools/installed.py runs.
Ends with 1 if a pair neither runs nor, for lack of that Python, resolves. --resolve-only installs
nothing.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = sys.executable, "-m", "uv"
#: So that uv takes a Python that is here; what it could fetch is no concern of this check.
HERE = "--no-python-downloads", "--no-project"


def pythons() -> list[str]:
    """The releases that pyproject.toml's classifiers name."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def oldest() -> list[str]:
    """The oldest torch and Triton that pyproject.toml allows."""
    found = re.findall(r'^ *"(torch|triton)>=([\d.]+)', (ROOT / "pyproject.toml").read_text(), re.M)
    return [f"{name}=={release}.*" for name, release in found]


def run(*command: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, **options)


def resolve(wheel: Path, python: str, more: list[str]) -> tuple[list[str], str]:
    """The torch, Triton and numpy that uv would install; or why it can't."""
    options = "--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"
    needs = "\n".join([f"tritemm @ {wheel.as_uri()}", *more])
    done = run(
        *UV, "pip", "compile", "--quiet", "--no-annotate", "--no-header", *options, "-", input=needs
    )
    return re.findall(r"^(?:torch|triton|numpy)==\S+", done.stdout, re.M), done.stderr


def install(wheel: Path, python: str, more: list[str]) -> tuple[bool, str]:
    """Whether the wheel multiplies in a clean environment, and what was said."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "environment")
        inside = str(place / "bin" / "python")
        commands = (
            (*UV, "venv", "--quiet", *HERE, "--python", python, str(place)),
            (*UV, "pip", "install", "--quiet", "--python", inside, str(wheel), *more),
            (inside, "-I", str(ROOT / "tools" / "installed.py")),
        )
        for command in commands:
            done = run(*command, cwd=folder, env=os.environ | {"TRITON_INTERPRET": "1"})
            if done.returncode:
                return False, done.stderr
    return True, done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", help="these alone, such as 3.12")
    parser.add_argument("--resolve-only", action="store_true")
    args = parser.parse_args()
    wheel, failed = args.wheel.resolve(), 0
    for python in args.python or pythons():
        there = run(*UV, "python", "find", *HERE, python).returncode == 0
        for which, more in (("oldest", oldest()), ("newest", [])):
            found, said = resolve(wheel, python, more)
            good = bool(found)
            if good and there and not args.resolve_only:
                good, said = install(wheel, python, more)
            elif good:
                said = "not run" if there else "not run: there is no such Python here"
            failed += not good
            told = f"Python {python}, {which}: {', '.join(found) or 'no resolution'}"
            print(f"{'ok' if good else 'FAILED'}  {told}: {said}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
