"""The examples: a quick look at speeds, which needs a GPU and says so."""

import importlib.util
import subprocess
import sys
import types

import pytest
import torch

from perf.machine import ROOT
from tritemm import budget

pytestmark = pytest.mark.host

PLOT = ROOT / "examples" / "perf_plot.py"


def loaded(monkeypatch):
    spec = importlib.util.spec_from_file_location("perf_plot", PLOT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_the_plot_says_so(tmp_path):
    """From any folder: it finds cuda_reference beside itself."""
    done = subprocess.run([sys.executable, PLOT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "examples/perf_plot.py needs a CUDA device, and torch sees none\n"
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


def test_the_plot_asks_for_every_provider_at_every_size(tmp_path, monkeypatch):
    """With made-up times: 1 ms of 2 M N K operations, and cuBLAS takes twice as long."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    import matplotlib
    import triton

    matplotlib.use("agg")
    plot = loaded(monkeypatch)

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
def test_the_providers_multiply(provider, monkeypatch):
    if provider.startswith("CUDA") and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("WGMMA needs compute capability 9.0")
    plot = loaded(monkeypatch)
    a, w = (torch.randn(256, 128, device="cuda", dtype=torch.float16) for _ in range(2))
    verdict = budget.check(plot.PROVIDERS[provider](a, w.mT), a, w.mT)
    assert verdict.ok, verdict
