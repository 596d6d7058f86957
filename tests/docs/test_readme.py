"""What README.md and the tutorial tell a reader to type does what they say."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from docs.lessons import FOLDER
from perf.__main__ import parser as perf_parser
from tritemm.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text):
    """What stands after a prompt, without its comment."""
    lines = "".join(blocks(text, "console")).splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def test_the_snippet_for_any_machine_runs():
    anywhere, _ = blocks(README, "python")
    interpreting = {**os.environ, "TRITON_INTERPRET": "1"}
    said = subprocess.run(
        [sys.executable, "-c", anywhere], env=interpreting, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert said.startswith("tensor(True)\n") and "kernel" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_snippet_for_a_gpu_runs():
    exec(blocks(README, "python")[1], {})


def test_make_has_the_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [words[1] for words in commands(README) if words[0] == "make"]
    assert named and set(named) <= set(targets)


@pytest.mark.host
@pytest.mark.parametrize("page", sorted(FOLDER.glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_commands_of_a_page_exist(page):
    """What disassembles is run, for the first rungs; what measures is parsed."""
    found = commands(page.read_text())
    assert found
    for python, m, module, *words in found:
        assert (python, m) == ("python", "-m")
        if module == "tritemm" and page.stem < "05":
            assert main(words) == 0
        elif module == "perf":
            perf_parser().parse_args(words)
