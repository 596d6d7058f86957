"""The examples: each prints what it says, those that run a model on any machine with `--tiny`."""

import importlib.util
import re
import subprocess
import sys
import types

import pytest
import torch
from torch.optim import _muon

from perf.machine import ROOT
from tests.harness import assert_right

without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs to lack a CUDA device")


@pytest.fixture
def example(monkeypatch):
    """Name -> the example's module."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])  # some add to it
        spec.loader.exec_module(module)
        return module

    return load


def test_training_beside_torch(example, capsys, monkeypatch):
    train_gpt = example("train_gpt")
    assert len(train_gpt.pages()) > 100_000
    # The same at every run, as the pages are not.
    text = torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(train_gpt, "pages", lambda: text.to(torch.uint8))
    assert train_gpt.main(["--tiny", "--steps", "1", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    heads, *steps = out.splitlines()[:3]
    assert heads.split() == ["step", "torch", "tritemm", "another", "seed"]
    for line in steps:
        theirs, ours, other = map(float, line.split()[1:])
        assert abs(ours - theirs) < 0.01 < abs(other - theirs)
    ours, seeds = (float(x) for x in re.findall(r"is (\S+) from torch on average", out))
    assert ours < 1e-3 < seeds
    assert train_gpt.main(["--tiny", "--steps", "2", "--dtype", "fp8"]) == 0
    heads, first, _, third, end, _, *told = capsys.readouterr().out.splitlines()
    assert heads.split()[-2:] == ["third", "seed"] and len(told) == 3
    assert end.split()[1:] == third.split()[1:]  # the last tenth of three steps
    theirs, ours = map(float, first.split()[1:3])
    assert 0 < abs(theirs - ours) < 0.02


def test_another_seed_is_another_run_and_the_same_one_is_not(example):
    train_gpt = example("train_gpt")
    args = train_gpt.arguments(["--tiny", "--steps", "2"])
    text = train_gpt.pages()
    first, again, other = (train_gpt.train(args, text, False, seed)[0] for seed in (0, 0, 1))
    assert first == again != other


def test_muon_by_ours_beside_torchs(example, capsys, monkeypatch):
    muon = example("muon")
    text = torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(muon, "pages", lambda: text.to(torch.uint8))
    assert muon.main(["--tiny", "--steps", "2"]) == 0
    assert _muon._zeropower_via_newtonschulz is muon.TORCHS
    heads, first, *steps = capsys.readouterr().out.splitlines()[:4]
    assert heads.split()[:3] == ["step", "torch", "tritemm"]
    assert len(set(first.split()[1:4])) == 1
    for line in steps:
        theirs, ours, gram, _ = map(float, line.split()[1:])
        assert abs(ours - theirs) < 0.02 > abs(gram - theirs)


def test_logits_alone_and_among_others(example, capsys):
    assert example("batch_invariant").main(["--tiny", "--dtype", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tritemm"] * 2 + ["torch"] * 2
    assert all(line.endswith("bits of its logits: equal") for line in lines[:2])
    assert all(re.search("equal$|[1-9][0-9]* of 240 differ", line) for line in lines[2:])


def test_bits_that_differ_are_said_and_end_in_1(example, capsys, monkeypatch):
    batch_invariant = example("batch_invariant")
    differ = [(2, 0, 240, 0.0), (9, 3, 240, 0.5)]
    monkeypatch.setattr(batch_invariant, "compare", lambda *args: differ)
    assert batch_invariant.main(["--tiny"]) == 1
    assert "9 prompts, bits of its logits: 3 of 240 differ, by up to 0.5" in capsys.readouterr().out


def test_generate_without_transformers(example, capsys, monkeypatch):
    generate = example("generate")
    monkeypatch.setattr(generate.importlib.util, "find_spec", lambda name: None)
    assert generate.main(["--tiny"]) == 2
    assert capsys.readouterr().err == (
        "examples/generate.py needs transformers: pip install '.[model]'\n"
    )


def test_generate(example, capsys):
    pytest.importorskip("transformers")
    assert example("generate").main(["--tiny", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    speeds = re.findall(r"(torch|tritemm) +(eager|graph) .* tokens/s; the first 4 tokens", out)
    ways = ["eager", "graph"] if torch.cuda.is_available() else ["eager"]
    assert speeds == [(name, way) for name in ("torch", "tritemm") for way in ways]
    assert "gate_proj and up_proj packed" in out


def test_a_package_of_a_converted_model(example, capsys, monkeypatch):
    """All but Inductor's C++, which takes a minute: the program runs as it was exported."""
    aot_inductor, given = example("aot_inductor"), []
    monkeypatch.setattr(
        torch._inductor,
        "aoti_compile_and_package",
        lambda program, package_path: given.append(program),
    )
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: given[0].module())
    assert aot_inductor.main(["--tiny"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 products by tritemm\n")
    assert re.findall(r"(\d) rows: (\S+) from", out) == [("8", "0.0e+00"), ("5", "0.0e+00")]
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: lambda x: x + 1)
    assert aot_inductor.main(["--tiny"]) == 1


@pytest.mark.gpu
def test_a_package_that_inductor_compiles(example, capsys):
    assert example("aot_inductor").main(["--tiny"]) == 0
    assert "3 products by tritemm" in capsys.readouterr().out


@without_a_gpu
@pytest.mark.parametrize(
    ("name", "words", "needs"),
    [
        *(
            (name, (), ", or --tiny")
            for name in ("train_gpt", "muon", "batch_invariant", "aot_inductor")
        ),
        ("muon", ("--time", "64x96", "--tiny"), ""),
    ],
)
def test_without_a_gpu_they_say_what_they_need(name, words, needs, example, capsys):
    assert example(name).main(list(words)) == 2
    assert capsys.readouterr().err == f"examples/{name}.py needs a CUDA device{needs}\n"


def test_a_size_is_two_numbers(example, capsys):
    with pytest.raises(SystemExit, match="2"):
        example("muon").main(["--time", "4096"])
    assert "argument --time: invalid size value: '4096'" in capsys.readouterr().err


@pytest.mark.host
@without_a_gpu
def test_without_a_gpu_the_plot_says_so(tmp_path):
    """From any folder: it finds cuda_reference beside itself."""
    words = [sys.executable, ROOT / "examples" / "perf_plot.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "examples/perf_plot.py needs a CUDA device, and torch sees none\n"
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


@pytest.mark.host
def test_the_plot_asks_for_every_provider_at_every_size(example, tmp_path, monkeypatch):
    """With made-up times: 1 ms of 2 M N K operations, and cuBLAS takes twice as long."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    import matplotlib
    import triton

    matplotlib.use("agg")
    plot = example("perf_plot")

    def bench(run, quantiles):
        provider = next(name for name in plot.PROVIDERS if run() == name)
        return [(1 + (provider == "cuBLAS")) * ms for ms in (1.0, 1.25, 0.8)]

    known = {name: lambda a, b, name=name: name for name in plot.PROVIDERS}
    monkeypatch.setattr(plot, "PROVIDERS", known)
    monkeypatch.setattr(triton.testing, "do_bench", bench)
    operand = types.SimpleNamespace(mT=None)
    monkeypatch.setattr(torch, "randn", lambda *shape, **options: operand)
    table = plot.benchmark.run(save_path=str(tmp_path), return_df=True)
    monkeypatch.undo()
    assert [tuple(sizes) for sizes in table[["M", "N", "K"]].values] == [
        (2**i,) * 3 for i in range(8, 15)
    ]
    sixth = table[table["M"] == 8192].iloc[0]
    speeds = {name: sixth[f"{name} (TFLOP/s)"] for name in known}
    assert speeds == pytest.approx(
        {"tritemm.matmul": 1099.51, "CUDA wgmma_cluster": 1099.51, "cuBLAS": 549.76}, rel=1e-4
    )
    assert (tmp_path / "quick-look.png").stat().st_size > 10_000


@pytest.mark.gpu
@pytest.mark.parametrize("provider", ["tritemm.matmul", "CUDA wgmma_cluster"])
def test_the_providers_multiply(provider, example):
    if provider.startswith("CUDA") and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("WGMMA needs compute capability 9.0")
    plot = example("perf_plot")
    a, w = (torch.randn(256, 128, device="cuda", dtype=torch.float16) for _ in range(2))
    assert_right(plot.PROVIDERS[provider](a, w.mT), a, w.mT)
