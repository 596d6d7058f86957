"""The results of `tritemm.tune`, kept for each user: one JSON file per GPU and version.

It is in `$TRITEMM_CACHE`, else `$XDG_CACHE_HOME/tritemm`, else `~/.cache/tritemm`; a user without a
home has none. A process reads it once, at the first choice. It is written under a lock, to a
temporary file that then replaces it: readers see the old file or the new one, and two writers lose
nothing. A file that can't be read is kept; one that is no cache is renamed to *.broken.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path

import triton
from filelock import FileLock

from ..machine import forks
from ..problem import Matrix, Problem, short_name
from ..problem.config import Config, changed, config_of
from ..version import __version__

#: {problem: {"kernel": name, "config": fields, "us": microseconds}}
Table = dict[str, dict]

_TABLES: dict[str, Table] = {}
_READING = forks.lock()


def folder() -> Path | None:
    """The folder of the files, which need not exist. None without a home and the two variables."""
    if own := os.environ.get("TRITEMM_CACHE"):
        return Path(own)
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # no HOME, and the user is unknown
        return None
    return place / "tritemm" if place.is_absolute() else None  # XDG: ignore relative paths


def path_of(gpu: str) -> Path | None:
    """The file of the GPU with this name, for this tritemm and this Triton."""
    place = folder()
    name = "-".join("".join(c if c.isalnum() else " " for c in gpu.lower()).split())
    return place and place / f"{name}-tritemm{__version__}-triton{triton.__version__}.json"


def lookup(problem: Problem) -> tuple[str, Config] | None:
    """The kernel's name and the config that were found for `problem`."""
    entry = _entry_of(problem)
    if entry is None:
        return None
    try:
        name, config = entry["kernel"], config_of(entry["config"])
    except (AttributeError, KeyError, TypeError, ValueError):  # written by another version
        return None
    return (name, config) if isinstance(name, str) else None


def seconds(problem: Problem) -> float | None:
    """Seconds for what `lookup` finds; None if they aren't known."""
    entry = _entry_of(problem)
    us = entry.get("us") if isinstance(entry, dict) else None
    if not isinstance(us, int | float) or not 0 < us <= sys.float_info.max:  # any JSON may be there
        return None
    return 1e-6 * us


def store(gpu: str, found: Mapping[str, dict]) -> None:
    """Add entries for the GPU with this name, for this process and for later ones.

    If the file can't be written, or exists and can't be read, a warning says so, and only this
    process has the entries.
    """
    try:
        table = _add(gpu, found)
    except OSError as error:
        warnings.warn(
            f"tuning results are not kept for other processes: {error}; TRITEMM_CACHE can name "
            "another folder for it",
            stacklevel=3,
        )
        table = {**_TABLES.get(gpu, {}), **found}
    _TABLES[gpu] = table


def table_of(gpu: str) -> Table:
    """All entries for the GPU with this name: this process's, and the file's current ones."""
    return {**_TABLES.get(gpu, {}), **_read(path_of(gpu))}


def entry(kernel: str, config: Config, seconds: float) -> dict:
    """The entry that is stored for a problem."""
    return {"kernel": kernel, "config": changed(config), "us": float(f"{1e6 * seconds:.4g}")}


def forget() -> None:
    """Make the next lookup read the files again."""
    _TABLES.clear()


def key(problem: Problem) -> str:
    """Sizes, layouts, types and alignment as text; not the device, for which there is a file."""
    p = problem
    sizes = f"{p.M}x{p.N}x{p.K} {p.batches[0]}x{p.batches[1]}"
    matrices = " ".join(_matrix(m) for m in (p.a, p.b, p.c))
    pairs = f" {p.epilogue.activation}" if p.epilogue.per_column > 1 else ""
    half = " symmetric" if p.epilogue.symmetric else ""
    cut = f" groups along {p.groups}" + " in blocks" * p.in_blocks if p.groups else ""
    scales = f" sums {p.sums}, scales {p.lines_per_scale}" if p.scales else ""
    how = f"{short_name(p.accumulate)} {p.precision}"
    return f"{sizes} {matrices} {how}{pairs}{half}{cut}{scales}"


def _matrix(matrix: Matrix) -> str:
    strides = ",".join(str(stride) for stride in matrix.strides)
    return f"{short_name(matrix.dtype)}:{strides}{'' if matrix.aligned else ':unaligned'}"


def _entry_of(problem: Problem) -> dict | None:
    gpu = problem.device.name
    with _READING:
        table = _TABLES[gpu] if gpu in _TABLES else _TABLES.setdefault(gpu, _read(path_of(gpu)))
    return table.get(key(problem)) if table else None


def _add(gpu: str, found: Mapping[str, dict]) -> Table:
    """The file's entries plus `found`; OSError if the file can't be read or written."""
    path = path_of(gpu)
    if path is None:
        raise FileNotFoundError("the user has no home directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Everybody who may write to the folder may lock it.
    mode = 0o600 | path.parent.stat().st_mode & 0o666
    with FileLock(path.with_suffix(".lock"), mode=mode):
        try:
            table = _load(path)
        except ValueError as error:
            aside = path.replace(path.with_suffix(".broken"))
            warnings.warn(f"{path} was broken ({error}); it is now {aside}", stacklevel=4)
            table = {}
        table |= found
        _replace(path, {"gpu": gpu, "problems": table})
    return table


def _read(path: Path | None) -> Table:
    """The file's entries; none, with a warning, if it exists and can't be read."""
    try:
        return _load(path) if path else {}
    except OSError as error:
        reason = str(error) if path and os.path.exists(path) else None
    except ValueError as error:
        reason = f"it is broken: {error}"
    if reason:
        warnings.warn(f"{path} is not used, because it can't be read: {reason}", stacklevel=4)
    return {}


def _load(path: Path) -> Table:
    """The entries; none if there is no file. OSError, or ValueError if it is no cache."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error
    problems = data.get("problems") if isinstance(data, dict) else None
    if not isinstance(problems, dict):
        raise ValueError("it has no JSON object of problems")
    return problems


def _replace(path: Path, data: Mapping) -> None:
    """Write `data` so that `path` is always complete, and keeps its permissions."""
    temporary = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # the first write
            shutil.copymode(path, temporary)
            # It may belong to another user, as under sudo; Windows has no chown.
            with contextlib.suppress(AttributeError, PermissionError):
                shutil.chown(temporary, path.stat().st_uid, path.stat().st_gid)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
