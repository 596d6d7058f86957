"""The bug report: true where all is well, still there where something is broken, and discreet."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from tritemm.cli import env
from tritemm.machine import interpreter


def test_versions_are_those_in_use():
    facts = env.collect()
    assert facts["python"] == sys.version.split()[0]
    assert facts["torch"] == torch.__version__
    assert facts["triton"] == triton.__version__
    assert facts["torch's CUDA"] == (torch.version.cuda or "none")
    assert re.fullmatch(r"\d+\.\d+.*", facts["triton's ptxas"])
    checkout = Path(__file__).parents[2] / ".git"
    assert facts["commit"].endswith("not a git checkout") != checkout.exists()


def test_facts_survive_json_and_every_one_is_rendered():
    facts = env.collect()
    assert json.loads(json.dumps(facts)) == facts
    text = env.render(facts)
    for name in facts.keys() - {"variables"}:  # no line where no variable is set
        assert re.search(rf"^{name} +\S", text, re.MULTILINE), name


def test_gpus_are_those_torch_sees():
    gpus = env.collect()["gpus"]
    if torch.cuda.is_available():
        assert len(gpus) == torch.cuda.device_count()
        assert gpus[0]["name"] == torch.cuda.get_device_name(0)
    else:
        assert gpus.startswith(("none", "unavailable: "))


@pytest.mark.parametrize("flag", ["ieee", "tf32"])
def test_fp32_precision_is_the_flag(flag):
    torch.backends.cuda.matmul.fp32_precision = flag  # which `conftest` puts back
    assert env.collect()["fp32_precision"] == flag


@pytest.mark.parametrize(("value", "shown"), [(True, "on"), (False, "off")])
def test_interpreter_mode(value, shown, monkeypatch):
    monkeypatch.setattr(interpreter, "INTERPRETED", value)
    text = env.render(env.collect())
    assert re.search(rf"^interpreter +{shown}$", text, re.MULTILINE)


def test_one_broken_package_leaves_the_other_facts(monkeypatch):
    healthy = env.collect()
    monkeypatch.setitem(sys.modules, "numpy", None)  # importing it now raises
    broken = env.collect()
    assert broken.pop("numpy").startswith("unavailable: ModuleNotFoundError: ")
    del healthy["numpy"]
    assert broken == healthy


def test_it_runs_without_the_package():
    # -S: no site-packages, so torch, triton and numpy are missing too
    command = [sys.executable, "-S", env.__file__]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("torch", "triton", "gpus", "numpy"):
        assert re.search(rf"^{name} +unavailable: ModuleNotFoundError", text, re.MULTILINE), name


def test_missing_programs_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    facts = env.collect()
    for name in ("driver", "nvcc", "ptxas", "cc"):
        assert facts[name].startswith("unavailable: FileNotFoundError: "), name


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("570.86.15\n570.86.15", "570.86.15"),
        ("/usr/lib/libnvidia-ml.so.1 is of another release\n 570.86.15", "570.86.15"),
        ("/usr/lib/libnvidia-ml.so.1", "unavailable: RuntimeError: nvidia-smi says '<path>'"),
    ],
)
def test_the_driver_is_a_version(said, fact, monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert env.collect()["driver"] == fact


def test_amds_torch(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    assert env.collect()["torch's CUDA"] == "none, but ROCm 6.4.1"


def test_no_person_or_place_is_named(monkeypatch):
    secret = "alice-of-wonderland"
    monkeypatch.setenv("HOME", f"/home/{secret}")
    monkeypatch.setenv("CUDA_HOME", f"/home/{secret}/cuda")
    monkeypatch.setenv("CC", f"/home/{secret}/bin/cc")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TRITON_CACHE_DIR", f"/scratch/{secret}")
    monkeypatch.setenv("TRITON_REDIS_HOST", secret)
    monkeypatch.setenv("TRITEMM_KEPT", "sm_90")
    text = env.render(env.collect())
    assert secret not in text
    assert "TRITON_CACHE_DIR=(set)" in text
    assert "TRITEMM_KEPT=sm_90" in text
