"""What a newcomer meets: the import in any order, how commands end, what a prompt shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tritemm
from tests.dispatch.choosing import problem
from tests.harness import surroundings
from tools.fit.__main__ import main as fit_main
from tritemm import dispatch
from tritemm.__main__ import main
from tritemm.api.tuning import Timed, Tuned
from tritemm.machine import interpreter, needs
from tritemm.machine.command import status_of
from tritemm.problem import INTERPRETED
from tritemm.rungs import RUNGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    """(code, variables) -> the lines that it prints in a process without TRITON_INTERPRET."""

    def run(code, **variables):
        script = tmp_path / "script.py"  # a file, because Triton reads the source of kernels
        script.write_text(code)
        env = surroundings(**variables)
        env.pop("TRITON_INTERPRET", None)
        done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


#: Triton's library is decorated here, its sums among it, before tritemm can say how.
AFTER_TRITON = """
import os, sys, warnings
from concurrent.futures import ThreadPoolExecutor
import triton, triton.language as tl
import torch
before = dict(os.environ)
warnings.filterwarnings("error", "Conversion of an array")  # what numpy 2.4 makes an error

import tritemm
from triton.backends.compiler import GPUTarget

def whole(*sizes):
    return torch.randint(-3, 4, sizes).to(torch.bfloat16)

for M, name in ((40, "tma"), (40, "pipelined"), (1, "gemv")):
    a, b = whole(M, 72), whole(72, 24)
    assert torch.equal(tritemm.matmul(a, b, kernel=name), a @ b), name

def right(_):
    return torch.equal(tritemm.matmul(a, b), a @ b)

sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(3) as threads:
    assert all(threads.map(right, range(9)))  # though the interpreter keeps its state in globals

assert dict(os.environ) == before  # child processes choose for themselves
assert not triton.knobs.runtime.interpret

@triton.jit
def theirs(x, y):
    tl.store(y, tl.sum(tl.load(x + tl.arange(0, 64)).to(tl.float32)))

source = triton.compiler.ASTSource(theirs, {"x": "*fp32", "y": "*fp32"}, {})
print("compiled", len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]) > 500)
"""


@pytest.mark.skipif(not INTERPRETED, reason="of the interpreter")
def test_the_interpreter_in_a_process_that_has_used_triton(run, tmp_path):
    """Any order of imports; and nothing of it is left to others, in this process or in children."""
    assert run(AFTER_TRITON, TRITON_CACHE_DIR=str(tmp_path))[-1] == "compiled True"


@pytest.mark.parametrize(
    ("variable", "devices", "interpreted"),
    [(None, 0, True), (None, 1, False), ("0", 0, False), ("1", 1, True)],
)
def test_who_is_interpreted(variable, devices, interpreted, monkeypatch):
    def starts_cuda(*args):
        raise AssertionError("a process that forks now can't use CUDA")

    for name in ("is_available", "init", "current_device"):
        monkeypatch.setattr(torch.cuda, name, starts_cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if variable is not None:
        monkeypatch.setenv("TRITON_INTERPRET", variable)
    assert interpreter.chosen() is interpreted


@pytest.mark.gpu
def test_a_process_may_fork_after_the_import(run):
    code = """
import os
import tritemm, torch
assert not tritemm.machine.interpreter.INTERPRETED
child = os.fork()
if child == 0:
    a = torch.ones(64, 64, device="cuda")
    os._exit(0 if tritemm.matmul(a, a)[0, 0].item() == 64 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(code) == ["0"]


@pytest.mark.gpu
def test_no_visible_gpu_is_none(run):
    code = "import tritemm; print(tritemm.machine.interpreter.INTERPRETED)"
    assert run(code, CUDA_VISIBLE_DEVICES="") == ["True"]


def test_a_prompt_shows_one_line():
    choice = dispatch.choose(problem(64, 64, 64))
    timed = tuple(Timed(kernel, choice.config, 1e-6, 1e-6) for kernel in RUNGS)
    for shown in (choice, timed[0].kernel, Tuned(choice, timed, 0)):
        assert "\n" not in repr(shown) and len(repr(shown)) < 200
    assert repr(tritemm.Config(64, 32, 16, SWAP=True)) == (
        "Config(BLOCK_M=64, BLOCK_N=32, BLOCK_K=16, SWAP=True)"
    )
    assert repr(choice).startswith(f"<Choice {choice.kernel.name}, {choice.config!r} for ")
    assert repr(RUNGS[0]) == "<rung 01 simt>"


def test_commands_take_one_layout_where_none_is_named(capsys):
    assert main(["asm", "simt", "--problem", "64,64,64", "--sm", "sm_90a"]) == 0
    assert "64 x 64 x 64 NT, bf16" in capsys.readouterr().out


def test_explain_says_of_which_gpu(capsys):
    assert main(["explain", "64", "64", "64"]) == 0
    here = "assumed; --gpu or --sm names another"
    if not INTERPRETED:
        here = f"{torch.cuda.get_device_name()}, which is here"
    first, *choice = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"device     .*{here}", first) and choice[0].startswith("problem    64")


@pytest.mark.skipif(not INTERPRETED, reason="in Triton's interpreter")
def test_explain_in_the_interpreter_speaks_of_no_gpu():
    a = torch.zeros(64, 96)
    said = str(tritemm.explain(a, a.mT, kernel="tiled"))
    assert "\nwork       4 tiles, one program after another\n" in said
    assert re.search(r"\npredicted  \d+ ms on the CPU, in Triton's interpreter\n", said)
    assert " SMs" not in said and "roofline" not in said
    assert "\nwork       1 tile, " in str(tritemm.explain(a[:8], a.mT[:, :8], kernel="tiled"))


def test_types_are_shipped_and_versions_said_once():
    assert (Path(tritemm.__file__).parent / "py.typed").exists()
    needed, said = ((ROOT / name).read_text() for name in ("pyproject.toml", "README.md"))
    oldest = [re.search(rf'"{name}>=([\d.]+)', needed)[1] for name in ("torch", "triton")]
    assert "PyTorch {} or newer, Triton {} or newer".format(*oldest) in said
    asked = [".".join(map(str, needs._NEEDED[name][1])) for name in ("torch", "triton")]
    assert asked == oldest


class TestRefusals:
    """A sentence on stderr and status 2, before anything takes its time."""

    def refused(self, capsys, main, *words):
        assert main([str(word) for word in words]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1, said
        return said.err

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("missing/x.png", "there is no folder"),
            ("folder.png", "it is a folder"),
            ("x.sheet", "must end in one of"),
        ],
    )
    def test_demo(self, name, words, tmp_path, capsys):
        pytest.importorskip("matplotlib")
        (tmp_path / "folder.png").mkdir()
        assert words in self.refused(capsys, main, "demo", "--plot", tmp_path / name)

    def test_fit(self, tmp_path, capsys):
        path = tmp_path / "samples.jsonl"
        words = ("fit", path, "--out", tmp_path / "out.json")
        assert "samples.jsonl: No such file" in self.refused(capsys, fit_main, *words)
        row = (
            '{"us": %s, "kernel": "tma", "M": %s, "N": 64, "K": 64, "dtype": "bf16", "out": "bf16",'
            '"layout": "NT", "config": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}}'
        )
        for text in ("{", '{"us": 1}', "[]", row % (-1, 64), row % ('"1"', 64), row % (1, -64)):
            path.write_text("{}\n" + text)
            assert "jsonl, line 2: " in self.refused(capsys, fit_main, *words), text
        path.write_bytes(b"\xff\xfe")
        assert "is no text" in self.refused(capsys, fit_main, *words)
        path.write_text("{}")
        assert "no time of a rung" in self.refused(capsys, fit_main, *words)
        path.write_text(row % (1, 64))
        for out, why in (
            (tmp_path / "missing" / "out.json", "no folder"),
            (tmp_path, "is a folder"),
        ):
            assert why in self.refused(capsys, fit_main, "fit", path, "--out", out)

    def test_load_and_export(self, tmp_path, capsys):
        path = tmp_path / "tuned.json"
        assert "tuned.json: No such file" in self.refused(capsys, main, "tuning", "load", path)
        path.write_text("[")
        assert "is not what" in self.refused(capsys, main, "tuning", "load", path)
        missing = tmp_path / "missing" / "out.json"
        assert "No such file" in self.refused(capsys, main, "tuning", "export", missing)

    def test_load_where_nothing_can_be_kept(self, tmp_path, capsys, monkeypatch):
        """It would be lost with the process."""
        path = tmp_path / "tuned.json"
        path.write_text('{"gpu": "NVIDIA H200", "problems": {}}')
        monkeypatch.setenv("TRITEMM_CACHE", str(path / "cache"))
        told = self.refused(capsys, main, "tuning", "load", path)
        assert "are not kept for other processes" in told and "TRITEMM_CACHE" in told


def test_who_reads_the_output_may_leave(monkeypatch):
    """As `python -m tritemm ladder | head -1` does; no traceback, not even at the end."""
    for command in (lambda: print("a line") or 0, lambda: main(["--help"])):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert status_of(command) == 128 + 13
            print("more", flush=True)  # goes nowhere


def test_there_is_no_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert status_of(lambda: print("a line") or 0) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full device")
def test_the_output_is_full(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert status_of(lambda: print("a line") or 0) == 2
    assert capsys.readouterr().err.startswith("tritemm: its output can't be written: No space")


@pytest.mark.once
@pytest.mark.wide
@pytest.mark.parametrize(
    "command", ["tritemm ladder", "cuda_reference list", "perf table", "docs.exercises"], ids=str
)
def test_nobody_reads_on(command):
    """As of `python -m ... | head`, of each package's own command."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(words, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (128 + 13, b"")
