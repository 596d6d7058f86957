"""What `tritemm.tune` found, kept for each user: one JSON file per GPU and version.

It lies in `$TRITEMM_CACHE`, else `$XDG_CACHE_HOME/tritemm`, else `~/.cache/tritemm`. A process
reads it once, at the first choice. It is written under a lock, to a temporary file that then takes
its place: readers see the old one or the new one, and two writers lose nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

import triton

from ..problem import Device, Matrix, Problem, short_name
from ..request import changed, config_of
from ..spec import Config

#: {problem: {"kernel": name, "config": fields, "us": microseconds}}
Table = dict[str, dict]

_TABLES: dict[str, Table] = {}
_READING = threading.Lock()


def folder() -> Path:
    """Where the files lie; it need not exist."""
    if "TRITEMM_CACHE" in os.environ:
        return Path(os.environ["TRITEMM_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tritemm"


def path_of(gpu: str) -> Path:
    """The file of the GPU with this name, for this tritemm and this Triton."""
    from .. import __version__

    name = "-".join("".join(c if c.isalnum() else " " for c in gpu.lower()).split())
    return folder() / f"{name}-tritemm{__version__}-triton{triton.__version__}.json"


def lookup(problem: Problem) -> tuple[str, Config] | None:
    """The kernel's name and the config that were found for `problem`."""
    table = _TABLES.get(problem.device.name)
    if table is None:
        table = _first_read(problem.device)
    entry = table.get(key(problem)) if table else None
    if entry is None:
        return None
    try:
        return entry["kernel"], config_of(entry["config"])
    except (AttributeError, KeyError, TypeError, ValueError):  # of another version
        return None


def store(gpu: str, found: Mapping[str, dict]) -> None:
    """Add entries of the GPU with this name, for this process and for later ones.

    Where the file can't be written, a warning says so and this process has them alone.
    """
    path = path_of(gpu)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = {**_read(path), **found}
            _replace(path, {"gpu": gpu, "problems": table})
    except OSError as error:
        warnings.warn(f"what was tuned is not kept: {error}", stacklevel=3)
        table = {**_TABLES.get(gpu, {}), **found}
    _TABLES[gpu] = table


def table_of(gpu: str) -> Table:
    """All entries of the GPU with this name, as the file has them now."""
    return _read(path_of(gpu))


def entry(kernel: str, config: Config, seconds: float) -> dict:
    """What is stored for a problem."""
    return {"kernel": kernel, "config": changed(config), "us": float(f"{1e6 * seconds:.4g}")}


def forget() -> None:
    """Read the files anew."""
    _TABLES.clear()


def key(problem: Problem) -> str:
    """Sizes, layouts, types and alignment as text; not the device, which the file is of."""
    p = problem
    sizes = f"{p.M}x{p.N}x{p.K} {p.batches[0]}x{p.batches[1]}"
    matrices = " ".join(_matrix(m) for m in (p.a, p.b, p.c))
    return f"{sizes} {matrices} {short_name(p.accumulate)} {p.precision}"


def _matrix(matrix: Matrix) -> str:
    strides = ",".join(str(stride) for stride in matrix.strides)
    return f"{short_name(matrix.dtype)}:{strides}{'' if matrix.aligned else ':unaligned'}"


def _first_read(device: Device) -> Table:
    with _READING:
        if device.name not in _TABLES:
            _TABLES[device.name] = _read(path_of(device.name))
        return _TABLES[device.name]


def _read(path: Path) -> Table:
    """The file's entries; none, with a warning, if it is there and can't be read."""
    try:
        problems = json.loads(path.read_text())["problems"]
        if not isinstance(problems, dict):
            raise TypeError("problems is no object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"{path} is not used, because it can't be read ({error!r}); tritemm.tune replaces it",
            stacklevel=4,
        )
        return {}
    return problems


def _replace(path: Path, data: Mapping) -> None:
    """Write `data` so that `path` is always whole."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
