"""Machines that tritemm can't run on, or not fast: a sentence says so, and what works there."""

import re
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path

import pytest
import torch

import tritemm
from tritemm import dispatch, plan, problem
from tritemm.arch import gpus
from tritemm.cli.main import main
from tritemm.machine import needs
from tritemm.plan import slow
from tritemm.problem import INTERPRETED, Device, Problem

ROOT = Path(__file__).resolve().parents[2]

#: Hides packages, as where they are not installed.
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Hidden())
sys.platform = {platform!r}
"""


@pytest.fixture
def python(tmp_path):
    """(arguments of python) -> (status, output, errors), with `files` of this folder in front."""

    def python(*words):
        path = f"{tmp_path}:{ROOT}"
        env = {"PYTHONPATH": path, "PATH": "", "HOME": str(tmp_path), "TRITON_INTERPRET": "1"}
        done = subprocess.run(
            [sys.executable, *words], env=env, capture_output=True, text=True, timeout=200
        )
        return done.returncode, done.stdout, done.stderr

    return python


@pytest.mark.parametrize(
    ("platform", "fix"),
    [
        ("linux", "which is not installed: pip install --upgrade torch triton"),
        ("darwin", "there is no Triton for macOS: use Linux"),
        ("win32", "there is no Triton for Windows: use Linux, in WSL 2"),
    ],
)
def test_without_triton(platform, fix, python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDDEN.format(names={"triton"}, platform=platform))
    told = f"tritemm needs Triton 3.6 or newer, and {fix}".replace("and which", "which")
    code = "try: import tritemm\nexcept ImportError as error: print(error.name, error)"
    status, out, _ = python("-c", code)
    assert status == 0 and out.startswith(f"tritemm {told}") and out.count("\n") == 1, out
    for words in (["ladder"], ["explain", "64", "64", "64"], []):
        status, out, errors = python("-m", "tritemm", *words)
        assert (status, out) == (2, "") and errors.count("\n") == 1, errors
        assert told in errors
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").write_text(code)
    (tmp_path / "tool" / "__main__.py").touch()
    assert python("-m", "tool")[1].startswith(f"tritemm {told}")
    assert python("-m", "tritemm", "--version")[:2] == (0, f"tritemm {tritemm.__version__}\n")
    if platform != sys.platform:  # torch can't be imported where that is not what it says
        return
    status, out, _ = python("-m", "tritemm", "env")
    assert status == 0 and "\ntriton          unavailable: ModuleNotFoundError" in out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("__version__ = '3.4.0'", "newer, and 3.4.0 is installed: pip install --upgrade torch"),
        ("import _no_such_library", "and triton can't be imported here: No module named"),
        ("raise ImportError('libz.so: no such file')", "imported here: libz.so: no such file"),
        ("raise OSError('libz.so: no such file')", "imported here: libz.so: no such file"),
        ("", "__init__.py is imported instead: start Python in another folder"),
        (None, "is imported instead: start Python in another folder"),
    ],
    ids=("old", "incomplete", "broken", "broken otherwise", "file", "folder"),
)
def test_with_another_triton(text, told, monkeypatch, tmp_path):
    (tmp_path / "triton").mkdir()
    if text is not None:
        (tmp_path / "triton" / "__init__.py").write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    reason = needs._why_not("triton")
    assert reason.startswith("tritemm needs Triton 3.6 or newer, and ") and told in reason


@pytest.mark.parametrize(
    ("version", "able"), [("2.10.1", False), ("2.11.0", True), ("2.14.1+cpu", True), ("3.0", True)]
)
def test_with_another_torch(version, able, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
    reason = needs._why_not("torch")
    assert able == (reason is None)
    assert able or f"needs PyTorch 2.11 or newer, and {version} is installed" in reason


def test_without_what_windows_lacks(python, tmp_path):
    lacking = "import os\nfor name in ('sched_getaffinity', 'chown'): delattr(os, name)\n"
    (tmp_path / "sitecustomize.py").write_text(lacking)
    code = """
import tritemm
from tritemm.compile import pool
from tritemm.dispatch import cache
assert pool._cores() >= 1
for name in "one", "two":
    cache.store("a gpu", {name: {}})
cache.forget()
print(sorted(cache.table_of("a gpu")))
"""
    assert python("-c", code) == (0, "['one', 'two']\n", "")


@pytest.fixture
def amd(monkeypatch):
    """A GPU of AMD's, as torch for ROCm shows it."""
    card = types.SimpleNamespace(name="AMD Instinct MI300X", major=9, minor=4)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    for module in (problem.device, sys.modules["tritemm.cli.main"]):
        monkeypatch.setattr(module, "INTERPRETED", False)
    problem.device._cuda_device.cache_clear()
    yield
    problem.device._cuda_device.cache_clear()


TOLD = "tritemm's kernels are for NVIDIA GPUs, and cuda:0 is AMD's AMD Instinct MI300X; use"


def test_a_gpu_of_amd(amd, capsys):
    with pytest.raises(problem.Unsupported, match="NVIDIA GPUs") as error:
        Device.of(torch.device("cuda"))
    assert str(error.value).startswith(TOLD) and error.value.short == "an AMD GPU"
    x = torch.empty(64, 64, device="meta")
    with pytest.raises(RuntimeError, match="NVIDIA GPUs"):
        tritemm.explain(x, x, device="cuda")
    assert main(["explain", "64", "64", "64"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"device     NVIDIA H200, assumed ({TOLD}")


@pytest.mark.parametrize(
    ("kernel", "said", "rungs"),
    [
        ("auto", "no kernel can run", "the others"),
        ("pipelined", 'kernel="pipelined" cannot run', "it"),
    ],
)
def test_no_rung_refuses_and_none_has_room(kernel, said, rungs):
    """The reason is a sentence all the same."""
    x = torch.empty(512, 512, dtype=torch.bfloat16, device="meta")
    tiny = Device("a small one", (8, 0), 108, 16384)
    with pytest.raises(ValueError, match=said) as error:
        dispatch.choose(Problem.of(x, x, x, device=tiny), kernel)
    told = str(error.value)
    assert "None" not in told
    assert told.endswith(f"no tile of {rungs} fits the 16384 bytes of shared memory of a small one")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100", ("H100", (9, 0), 132)),
        ("nvidia a100", ("NVIDIA A100", (8, 0), 108)),
        ("RTX 4090", ("NVIDIA RTX 4090", (8, 9), 128)),
        ("NVIDIA H200", ("NVIDIA H200", (9, 0), 132)),
        ("sm_90a", ("sm_90", (9, 0), 132)),
        (103, ("sm_103", (10, 3), 148)),
        ("80", ("sm_80", (8, 0), 108)),
    ],
    ids=str,
)
def test_gpus_by_name(name, found):
    device = gpus.named(name)
    assert found[0] in device.name and (device.capability, device.sms) == found[1:]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("75", "architecture sm_75 is older than sm_80, which tritemm needs; one of sm_80, "),
        ("sm_95", "architecture sm_95 is unknown; one of sm_80, "),
        ("K80", "GPU 'K80' is unknown; one of A100, "),
        ("", "GPU '' is unknown; one of A100, "),
    ],
)
def test_gpus_that_are_unknown(name, why, capsys):
    with pytest.raises(ValueError, match="one of") as error:
        gpus.named(name)
    assert str(error.value).startswith(why)
    assert main(["explain", "--gpu", name, "64", "64", "64"]) == 2
    assert capsys.readouterr().err.startswith(f"tritemm explain: {why}")


def test_explain_for_a_gpu_that_is_not_here(capsys):
    kinds = {"dtype": torch.bfloat16, "device": "meta"}
    x, w = torch.empty(4096, 4096, **kinds), torch.empty(4096, 4096, **kinds)
    for name in ("A100", "H100", "sm_90", "B300", 120):
        choice = tritemm.explain(x, w.mT, device=name)
        assert choice.problem.device == gpus.named(name)
        assert (choice.problem.a, choice.problem.layout) == (choice.problem.a, "NT")
        assert " SMs: " in str(choice) and "roofline" in str(choice)
    here = torch.zeros(64, 128)[:, ::2]  # views count as they are
    strides = tritemm.explain(here, here, device="H100").problem.a.strides
    assert strides == (0, 0, 128, 2)
    for option, name in (("--gpu", "h100"), ("--sm", "sm_90"), ("--sm", "90")):
        assert main(["explain", option, name, "4096", "4096", "4096"]) == 0
        device, asked, *_ = capsys.readouterr().out.splitlines()
        assert device.endswith(" with 132 SMs") and "4096 NT, bf16" in asked


@pytest.mark.skipif(not INTERPRETED, reason="in Triton's interpreter")
class TestTheInterpreterIsSlow:
    """A warning before the first product that takes long, direct or routed; and never again."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        """Nothing is multiplied."""
        monkeypatch.setattr(slow, "warning", slow.Slow())
        monkeypatch.setattr(plan, "run", lambda *args: [None])

    @pytest.mark.parametrize("call", [tritemm.matmul, torch.mm])
    def test_a_large_product(self, call):
        a = torch.zeros(1024, 1024)
        told = r"1024 x 1024 x 1024 NN.* takes about [\d.]+ s\. .*tritemm\.disable"
        with pytest.warns(UserWarning, match=told), tritemm.enabled():
            call(a, a)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tritemm.matmul(a, a)
            tritemm.matmul(a, a, kernel="tiled")

    def test_many_small_ones(self, recwarn):
        a = torch.zeros(256, 256)
        for _ in range(60):
            tritemm.matmul(a, a)
        (warned,) = recwarn
        assert re.search(r" s, after \d s for those before it\. ", str(warned.message))


SECOND = """
import sys
import tritemm
for name in [name for name in sys.modules if name.partition(".")[0] == "tritemm"]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
try:
    import tritemm
except ImportError as error:
    print(error)
"""


def test_two_copies_in_one_process(python, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "tritemm").symlink_to(ROOT / "tritemm")
    status, out, errors = python("-c", SECOND, str(other))
    assert status == 0, errors
    assert f"{ROOT / 'tritemm' / 'op' / 'gemm.py'} has registered its operators, and {other}" in out
    assert "Import only one of the two" in out


IN_THE_INTERPRETER = {
    "a process that is forked while another thread multiplies": """
        import os, threading, torch, tritemm
        a, done = torch.ones(16, 16), []

        def multiply():
            while not done:
                tritemm.matmul(a, a)

        thread = threading.Thread(target=multiply, daemon=True)
        thread.start()
        for _ in range(4):
            child = os.fork()
            if not child:
                os._exit(0 if (tritemm.matmul(a, a) == 16).all() else 1)
            assert os.waitpid(child, 0)[1] == 0
        done.append(True)
        thread.join()
    """,
    "a process that is forked while another thread reads what was tuned": """
        import os, threading, time, torch, tritemm
        from tritemm.dispatch import cache
        a, read, reading = torch.ones(16, 16), cache._read, threading.Event()

        def slowly(path):
            reading.set()
            time.sleep(3)
            return read(path)

        cache._read = slowly
        threading.Thread(target=tritemm.matmul, args=(a, a), daemon=True).start()
        assert reading.wait(30)
        child = os.fork()
        cache._read = read
        if not child:
            os._exit(0 if tritemm.explain(a, a) else 1)
        assert os.waitpid(child, 0)[1] == 0
    """,
    "infinities, of which torch says nothing": """
        import torch, tritemm, warnings
        warnings.simplefilter("error")
        x, w = torch.full((2, 4), 1e30), -torch.eye(4)
        assert tritemm.linear(x, w, activation="silu").isfinite().all()
        assert tritemm.matmul(x, 1e30 * w, activation="gelu").shape == (2, 4)
        assert tritemm.matmul(x * float("inf"), w).isnan().any()
    """,
}


@pytest.mark.skipif(not INTERPRETED, reason="is of the interpreter")
@pytest.mark.parametrize("code", IN_THE_INTERPRETER.values(), ids=IN_THE_INTERPRETER)
def test_in_the_interpreter(code, python):
    status, _, errors = python("-c", textwrap.dedent(code))
    assert status == 0, errors


def test_without_docstrings(python):
    """As `python -OO` runs; what is read from them is missing."""
    code = (
        "import torch, tritemm; print(tritemm.explain(*[torch.ones(8, 8)] * 2), tritemm.ladder())"
    )
    status, out, errors = python("-OO", "-c", code)
    assert status == 0 and "\nkernel     " in out, errors
