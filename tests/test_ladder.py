"""The registry, the headers, the generated pages; and that a new rung costs two files."""

import ast
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tritemm
from docs.generate import stale
from perf.sources import files_of
from tests.dispatch.choosing import problem
from tests.harness import DEVICE
from tritemm import spec
from tritemm.__main__ import main
from tritemm.cli import demo
from tritemm.problem import INTERPRETED, Device
from tritemm.rungs import RUNGS, STEPS

ROOT = Path(__file__).resolve().parent.parent
every_rung = pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)


def test_every_kernel_file_is_on_the_ladder_in_order():
    files = sorted(path.stem for path in (ROOT / "tritemm" / "kernels").glob("k*.py"))
    assert files == [kernel.module.rpartition(".")[2] for kernel in RUNGS]


@every_rung
def test_a_rung_is_one_short_file_with_a_header(kernel):
    """And the function has the rung's name, which profiles show."""
    assert len(file_of(kernel).read_text().splitlines()) <= 200
    assert kernel.fn.__name__ == f"{kernel.name}_kernel"
    lines = kernel.doc.strip().splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith(f"{kernel.name}: ") and lines[0].endswith(".")
    assert set(spec.HEADER_KEYS) - {"Note"} <= set(kernel.header)
    assert set(kernel.header) <= set(spec.HEADER_KEYS)
    for sm, (present, _) in kernel.signs.items():
        assert sm in (80, 90) and present


def file_of(kernel):
    return ROOT / "tritemm" / "kernels" / f"{kernel.module.rpartition('.')[2]}.py"


@every_rung
def test_a_rung_and_the_device_functions_that_it_uses_are_short(kernel):
    """At most 1565 lines: what a reader of one rung has to read, helpers of helpers included."""
    first, *others = files_of(file_of(kernel))
    known = {}
    for file in others:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and is_of_the_device(node):
                known.setdefault(node.name, []).append(node)
    text = first.read_text()
    used, unread = set(), [ast.parse(text)]
    while unread:
        nodes = list(ast.walk(unread.pop()))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        found = {node for name in names for node in known.get(name, ())} - used
        used |= found
        unread += found
    assert used
    lengths = (n.end_lineno - n.decorator_list[0].lineno + 1 for n in used)
    assert len(text.splitlines()) + sum(lengths) <= 1565


def is_of_the_device(node):
    decorators = map(ast.unparse, node.decorator_list)
    return any(re.search(r"jit|aggregate|constexpr_function|builtin", text) for text in decorators)


@pytest.mark.parametrize(
    ("below", "kernel"), [*itertools.pairwise(STEPS)], ids=lambda kernel: kernel.name
)
def test_a_step_adds_one_idea(below, kernel):
    """So what changes from one rung to the next, in reading order, is read at one sitting."""
    words = ["diff", file_of(below), file_of(kernel)]
    lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    assert 0 < sum(line.startswith(("<", ">")) for line in lines) <= 130


@pytest.mark.once
def test_generated_pages_are_fresh():
    assert stale() == [], "run `make docs`"


def test_ladder_prints_every_rung(capsys):
    assert tritemm.ladder() == RUNGS
    for kernel, line in zip(RUNGS, str(tritemm.ladder()).splitlines(), strict=True):
        assert line.split()[:2] == [f"{kernel.number:02}", kernel.name]
    assert main(["ladder", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [kernel.name for kernel in RUNGS]


@pytest.mark.once  # what it runs has tests of its own
def test_demo_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "SCALE", 2 * demo.SCALE)  # an eighth of the work
    plot = tmp_path / "ladder.png"
    assert main(["demo", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    sizes = (size // demo.SCALE for size in demo.LAYER)
    layer = problem(*sizes, device=Device.of(torch.device(DEVICE)))
    for kernel in RUNGS:
        reason = kernel.why_not(layer)
        assert not (INTERPRETED and kernel.interpreted and reason)
        verdict = f"not here: {re.escape(reason)}" if reason else "correct"
        assert re.search(rf"^{kernel.name} .*{verdict}$", out, re.MULTILINE)
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 10_000


def test_the_signature_in_the_docs_is_the_real_one():
    text = (ROOT / "docs" / "semantics.md").read_text()
    written = re.search(r"`tritemm\.matmul\((.*?)\)`", text, re.DOTALL).group(1)
    names = [word.split("=")[0].strip() for word in written.replace("*,", "").split(",")]
    assert names == list(inspect.signature(tritemm.matmul).parameters)


@pytest.mark.once
def test_a_new_rung_is_a_file_and_a_line(tmp_path):
    """A newcomer in a copy: nothing else changes, and the tests, the tool and the table know it."""
    for name in ("tritemm", "cuda_reference", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = RUNGS[1]
    text = file_of(source).read_text().replace(f"{source.name}_kernel", "newcomer_kernel")
    newcomer = tmp_path / "tritemm" / "kernels" / "k99_newcomer.py"
    newcomer.write_text(text.replace(f'"""{source.name}:', '"""newcomer:'))
    registry = tmp_path / "tritemm" / "rungs.py"
    last = f'"{RUNGS[-1].name}",\n'
    assert last in registry.read_text()
    registry.write_text(registry.read_text().replace(last, f'{last}    "newcomer",\n'))

    def python(*words):
        env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        words = [sys.executable, "-m", *words]
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert "99 newcomer" in python("tritemm", "ladder").stdout
    shapes = "newcomer and (prime or flat or row or column or crossed)"
    chosen = ("tests/kernels/test_kernels.py", "-k", shapes)
    run = python("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen)
    passed = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0 and passed and int(passed.group(1)) > 10, run.stdout[-2000:]
    refused = python("tritemm", "asm", "unheard-of")
    assert refused.returncode == 2 and "newcomer" in refused.stderr
