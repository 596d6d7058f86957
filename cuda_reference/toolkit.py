"""Where nvcc is, what it is called with, and the cache of what it has made."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import source

#: Beside these, torch.utils.cpp_extension adds COMMON below by itself. Hidden symbols: libraries
#: that share a template must not share its host stub.
FLAGS = ("-std=c++17", "-O3", "-Xcompiler=-fvisibility=hidden")
#: What torch compiles every extension with; cubins are made with the same.
COMMON = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)


class Unavailable(RuntimeError):
    """Something that no source of ours can mend is missing: nvcc, ninja, a C++ compiler, a GPU."""


@dataclasses.dataclass(frozen=True)
class Nvcc:
    """`root` is the toolkit's folder, with bin, include and lib; nvcc itself may be a wrapper."""

    path: Path
    root: Path
    version: str


def nvcc() -> Nvcc:
    """The compiler; raises Unavailable with the reason, found once."""
    found = _find_nvcc()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@functools.cache
def _find_nvcc() -> Nvcc | str:
    path = next((path for path in _candidates() if os.access(path, os.X_OK)), None)
    if path is None:
        return (
            "nvcc was not found: not in CUDA_HOME, on PATH or in a wheel; install the CUDA "
            "toolkit, or its wheels: pip install -c constraints.txt '.[nvcc]'"
        )
    if shutil.which("c++") is None and shutil.which("g++") is None:
        return "no C++ compiler was found, which nvcc needs; install g++"
    said = _output(str(path), "--version")
    version = re.search(r"\bV(\d[\d.]*)", said)
    steps = _output(str(path), "--dryrun", "-cubin", "-x", "cu", "-o", "x.cubin", os.devnull)
    top = re.search(r"^#\$ TOP=(.*)$", steps, re.MULTILINE)
    if not version or not top:
        return f"{path} does not answer as nvcc does: {said.strip()[-200:]}"
    return Nvcc(path, Path(top.group(1)).resolve(), version.group(1))


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable], "bin", "nvcc")
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    for folder in wheel_folders():
        yield folder / "bin" / "nvcc"


def wheel_folders() -> list[Path]:
    """Where NVIDIA's wheels of CUDA 13 and newer put a toolkit, newest first."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None:
        return []
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    return sorted((folder for place in places for folder in place.glob("cu[0-9]*")), reverse=True)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout + done.stderr


def gencode(arch: str) -> str:
    """The option that makes machine code for one architecture ("80", "90a") and nothing else."""
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"


def fingerprint(path: Path, arch: str, flags: Sequence[str] = FLAGS + COMMON) -> str:
    """Changes with the source, what it includes, the flags, nvcc, architecture and platform."""
    digest = hashlib.sha256()
    parts = [*flags, arch, nvcc().version, platform.machine(), *platform.libc_ver()]
    for part in parts + [file.read_text() for file in source.files_of(path)]:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """TORCH_EXTENSIONS_DIR if it is set, else tritemm_cuda in the user's cache."""
    if place := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(place)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tritemm_cuda")


def cached(path: Path, arch: str, suffix: str, flags: Sequence[str] = FLAGS + COMMON) -> Path:
    """Where what is made of a source belongs, whether it is there or not."""
    name = path.relative_to(source.ROOT) if path.is_relative_to(source.ROOT) else path
    word = "_".join(name.with_suffix("").parts[-2:])
    return cache_folder() / f"{word}-sm_{arch}-{fingerprint(path, arch, flags)}{suffix}"


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """One thread of one process at a time makes `file`; a lock dies with its process."""
    import fcntl  # not on Windows, where listing the ladder should still work

    file.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{file}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def put(file: Path, data: bytes) -> None:
    """Write `file` whole: a concurrent reader finds all of it or nothing."""
    with tempfile.TemporaryDirectory(prefix=file.stem + "-", dir=file.parent) as folder:
        part = Path(folder, file.name)
        part.write_bytes(data)
        os.replace(part, file)
