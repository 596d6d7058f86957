"""From a .cu to functions that Python can call: one extension each, built once, cached on disk."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from . import progress, source, toolkit
from .toolkit import Unavailable

__all__ = ["Unavailable", "architecture", "build", "library", "runs_on", "unavailable"]

#: What the sources export, a rung the first and a table of types the second, and its arguments.
_EXPORTS = {"launch": [ctypes.c_void_p], "run": [ctypes.c_char_p, ctypes.c_void_p]}

_LIBRARIES: dict[tuple[str, str], ctypes.CDLL] = {}
_LOADING = threading.Lock()


def library(name: str, arch: str | None = None) -> ctypes.CDLL:
    """The compiled `name`.cu for `arch`, the current device's unless given; built if need be.

    `name` is a path without its suffix, "mma_base" or "types/wmma_f64". Its `launch` or `run`
    returns an error text, or None.

    Raises:
        Unavailable: there is no GPU, or something that building needs.
        RuntimeError: it does not compile; the message holds nvcc's.
    """
    arch = arch or architecture()
    found = _LIBRARIES.get((name, arch))
    if found is None:
        with _LOADING:
            found = _LIBRARIES.setdefault((name, arch), _load(_build(name, arch)))
    return found


def architecture(capability: tuple[int, int] | None = None) -> str:
    """The current device's name for nvcc, "80" or "90a"; raises Unavailable without a device."""
    if capability is None:
        if not torch.cuda.is_available():
            raise Unavailable(_no_device())
        capability = torch.cuda.get_device_capability()
    return source.target(10 * capability[0] + capability[1])


def unavailable() -> str | None:
    """Why nothing can be built and loaded on this machine, or None if it can."""
    try:
        architecture()
        _needs()
    except Unavailable as reason:
        return str(reason)
    return None


def build(names: Sequence[str], jobs: int | None = None) -> dict[str, str]:
    """Build what is not cached for the current device, `jobs` at a time, and show progress.

    Returns what failed: each name's error message. A source without signs for the device's
    architecture is left out.
    """
    arch = architecture()
    tasks = {
        name: functools.partial(_build, name, arch)
        for name in source.largest_first(names)
        if runs_on(name, arch) and not _library_file(name, arch).exists()
    }
    return progress.in_parallel(f"building for sm_{arch}", tasks, jobs)


def runs_on(name: str, arch: str) -> bool:
    """Sources whose signs name sm_80 run on everything newer, the others on Hopper alone."""
    return "80" in source.architectures(name) or arch in source.architectures(name)


def _build(name: str, arch: str) -> Path:
    """The shared library of `name`; compiled unless the cache has it."""
    made = _library_file(name, arch)
    if not made.exists():
        with toolkit.locked(made):
            if not made.exists():
                _compile(name, arch, made)
    return made


def _library_file(name: str, arch: str) -> Path:
    return toolkit.cached(source.path_of(name), arch, ".so")


def _compile(name: str, arch: str, made: Path) -> None:
    """Build in a folder of its own and move the result: nobody reads half a library."""
    _needs()
    folder = Path(tempfile.mkdtemp(prefix=made.stem + "-", dir=made.parent))
    try:
        os.replace(_load_inline(name, arch, folder), made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _load_inline(name: str, arch: str, folder: Path) -> Path:
    """Compile and link by torch's JIT, which several threads can use for different names."""
    from torch.utils import cpp_extension

    path = source.path_of(name)
    cpp_extension.CUDA_HOME = str(toolkit.nvcc().root)
    flags = sys.getdlopenflags()
    try:
        built = cpp_extension.load_inline(
            name="tritemm_" + name.replace("/", "_"),
            cpp_sources="",
            cuda_sources=path.read_text(),
            no_implicit_headers=True,
            is_python_module=False,
            extra_cuda_cflags=[*toolkit.FLAGS, toolkit.gencode(arch)],
            # Nothing of torch is called, so nothing of it needs to be linked.
            extra_ldflags=["-Wl,--as-needed", *_cudart(folder)],
            extra_include_paths=[str(path.parent), str(source.INCLUDE)],
            build_directory=str(folder),
        )
    except RuntimeError as error:
        raise RuntimeError(f"{name} does not compile: {_said(str(error))}") from None
    finally:
        sys.setdlopenflags(flags)  # torch loads what it built with flags of its own
    return Path(built)


def _cudart(folder: Path) -> list[str]:
    """Where the linker finds libcudart.so: a toolkit of wheels has no file of just that name."""
    root = toolkit.nvcc().root
    if any((root / lib / "libcudart.so").exists() for lib in ("lib64", "lib")):
        return []
    for place in (root, *toolkit.wheel_folders()):
        for file in sorted((place / "lib").glob("libcudart.so.*")):
            (folder / "libcudart.so").symlink_to(file)
            return [f"-L{folder}"]
    return []


def _said(log: str) -> str:
    """What the compiler says in ninja's log, without the command lines."""
    noise = ("[", "FAILED:", "ninja:", "Error building extension")
    lines = [line for line in log.splitlines() if not line.startswith(noise) and " -c " not in line]
    return "\n".join(lines).strip()[-4000:] or log[-4000:]


def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, arguments in _EXPORTS.items():
        if hasattr(loaded, name):
            function = getattr(loaded, name)
            function.restype, function.argtypes = ctypes.c_char_p, arguments
    return loaded


def _needs() -> None:
    """Raises Unavailable if a program that building needs is missing."""
    toolkit.nvcc()
    if reason := _no_ninja():
        raise Unavailable(reason)


@functools.cache
def _no_ninja() -> str | None:
    if shutil.which("ninja") is None:
        beside = Path(sys.executable).parent
        if not (beside / "ninja").exists():
            return "ninja was not found, which torch builds extensions with; pip install ninja"
        # A virtual environment that was not activated.
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    return None


@functools.cache
def _no_device() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "torch finds no CUDA device"
