"""Facts for a bug report: `python -m tritemm env`, or `python tritemm/cli/env.py` if even
`import tritemm` fails.

It must work in a broken installation, so this module imports only the standard library and reads
each fact with a probe of its own. It reveals no host name, user name or folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

# In addition to TRITON_* and TRITEMM_*: these change what is computed, or where.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE")
_PRIVATE = re.compile("HOST|USER|KEY|TOKEN|PASSWORD|SECRET")


def collect() -> dict[str, Any]:
    """The facts by name, as JSON can hold them; "unavailable: REASON" where one can't be read."""
    probes: dict[str, Callable[[], Any]] = {
        "tritemm": lambda: metadata.version("tritemm"),
        "commit": _commit,
        "python": platform.python_version,
        "platform": platform.platform,
        "torch": lambda: import_module("torch").__version__,
        "torch's CUDA": lambda: _cuda_of(import_module("torch").version),
        "triton": lambda: import_module("triton").__version__,
        "interpreter": lambda: import_module("tritemm.machine.interpreter").INTERPRETED,
        "numpy": lambda: import_module("numpy").__version__,
        "driver": _driver,
        "gpus": _gpus,
        "fp32_precision": lambda: import_module("torch").backends.cuda.matmul.fp32_precision,
        "nvcc": lambda: _cuda_tool("nvcc"),
        "ptxas": lambda: _cuda_tool("ptxas"),
        "triton's ptxas": lambda: import_module("triton").knobs.nvidia.ptxas.version,
        "cc": lambda: _run(os.environ.get("CC", "cc"), "--version").splitlines()[0],
        "variables": _variables,
    }
    return {name: _attempt(probe) for name, probe in probes.items()}


def render(facts: dict[str, Any]) -> str:
    """The facts of `collect()` as text: a line each, and a line for each GPU and variable."""
    lines = []
    for name, fact in facts.items():
        match fact:
            case bool():
                rows = ["on" if fact else "off"]
            case list():
                rows = [", ".join(f"{k} {v}" for k, v in gpu.items()) for gpu in fact]
            case dict():
                rows = [f"{k}={v}" for k, v in fact.items()]
            case _:
                rows = [str(fact)]
        lines.append(f"{name:<16}" + ("\n" + " " * 16).join(rows))
    return "\n".join(lines)


def show(as_json: bool = False) -> None:
    """Print the facts."""
    facts = collect()
    print(json.dumps(facts, indent=2) if as_json else render(facts))


def _attempt(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except Exception as error:  # whatever a broken installation raises is itself the fact
        reason = next(iter(str(error).strip().splitlines()), "")
        reason = re.sub(r"(?<!\w)(\w:)?[/\\][^\s'\"]+", "<path>", reason)
        return f"unavailable: {type(error).__name__}: {reason}"


def _run(program: str, *arguments: str) -> str:
    if shutil.which(program) is None:
        raise FileNotFoundError(f"{program} was not found")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30)
    said = done.stdout.strip() or done.stderr.strip()
    if done.returncode:
        raise RuntimeError(said or f"{program} ended with status {done.returncode}")
    return said


def _commit() -> str:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed; git could find a repository that isn't ours
        raise FileNotFoundError("not a git checkout")
    return _run("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12")


def _cuda_of(version: Any) -> str:
    """The CUDA that torch was built with; on AMD's GPUs, ROCm."""
    hip = getattr(version, "hip", None)
    return version.cuda or (f"none, but ROCm {hip}" if hip else "none")


def _driver() -> str:
    query = _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    for line in query.splitlines():  # one for each GPU, all alike; and warnings
        if re.fullmatch(r"\d+(\.\d+)+", line.strip()):
            return line.strip()
    raise RuntimeError(f"nvidia-smi says {query.splitlines()[0]!r}")


def _gpus() -> list[dict[str, Any]] | str:
    torch = import_module("torch")
    if torch.version.cuda is None:
        return "none"
    torch.cuda.init()  # raises the reason when there is no GPU to use
    return [
        {
            "name": gpu.name,
            "capability": f"{gpu.major}.{gpu.minor}",
            "SMs": gpu.multi_processor_count,
            "GiB": round(gpu.total_memory / 2**30, 1),
        }
        for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]


def _cuda_tool(name: str) -> str:
    """The version of nvcc or ptxas: on the PATH, else where torch's load_inline looks as well."""
    beside_cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", name)
    said = _run(name if shutil.which(name) else str(beside_cuda), "--version")
    version = re.search(r"\bV(\d[\d.]*)", said)
    return version[1] if version else said.splitlines()[-1]


def _variables() -> dict[str, str]:
    """The variables that matter, in order; hides values that may name a place or a person."""
    return {
        name: "(set)" if _PRIVATE.search(name) or re.search(r"[/\\@]", value) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(("TRITON_", "TRITEMM_")) or name in _VARIABLES
    }


if __name__ == "__main__":
    try:
        show(as_json="--json" in sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # the reader left, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        sys.exit(1)
