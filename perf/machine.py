"""What a measurement ran on: versions, commit, and the card's clock, power and temperature."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class State:
    """The card at one moment; None is what NVML doesn't report (or if NVML is absent).

    `limited`: the clock is below its maximum, or the power so near its limit that it soon will be.
    """

    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    limited: bool | None = None

    @staticmethod
    def median(states: Iterable[State]) -> State:
        """The median of each field over the states that know it; limited if any is."""
        states = list(states)
        known = {
            field.name: [v for s in states if (v := getattr(s, field.name)) is not None]
            for field in dataclasses.fields(State)
        }
        flags = known.pop("limited")
        medians = {name: statistics.median(v) if v else None for name, v in known.items()}
        return State(**medians, limited=any(flags) if flags else None)


@dataclasses.dataclass(frozen=True)
class Environment:
    """`commit` is None, and `dirty` too, where there is neither git nor TRITEMM_COMMIT."""

    gpu: str
    driver: str | None
    cuda: str | None
    torch: str
    triton: str
    cublas: str | None
    commit: str | None
    dirty: bool | None


def slug(gpu: str) -> str:
    """`NVIDIA H200` -> `nvidia-h200`."""
    return re.sub("[^a-z0-9]+", "-", gpu.lower()).strip("-")


def environment() -> Environment:
    """The current CUDA device and what drives it."""
    import torch
    import triton

    commit, dirty = revision()
    return Environment(
        gpu=torch.cuda.get_device_name(),
        driver=_driver(),
        cuda=torch.version.cuda,
        torch=torch.__version__,
        triton=triton.__version__,
        cublas=_cublas(torch.version.cuda),
        commit=commit,
        dirty=dirty,
    )


def revision() -> tuple[str | None, bool | None]:
    """The commit, and whether tracked files other than results differ from it.

    A machine that has the files without git is told by the environment variable TRITEMM_COMMIT,
    `<hash>` or `<hash>-dirty`.
    """
    told = os.environ.get("TRITEMM_COMMIT")
    if told:
        return told.removesuffix("-dirty"), told.endswith("-dirty")
    try:
        commit = _git("rev-parse", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!perf/results")
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return commit, bool(changes)


def _git(*args: str) -> str:
    run = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def _cublas(cuda: str | None) -> str | None:
    """Version of the cuBLAS that is loaded, wherever it came from; `13.1.0 with Lt 13.5.1` of two.

    What multiplies is mostly in cuBLASLt. A loaded library is found by its name, not by a path.
    """
    if cuda is None:
        return None
    major = cuda.partition(".")[0]
    whole, lt = (_version(f"lib{name}.so.{major}", name) for name in ("cublas", "cublasLt"))
    if whole is None:
        return lt and f"Lt {lt}"
    return whole if lt in (None, whole) else f"{whole} with Lt {lt}"


def _version(file: str, name: str) -> str | None:
    try:
        get = getattr(ctypes.CDLL(file), f"{name}GetProperty")
    except (OSError, AttributeError):
        return None
    parts = []
    for which in range(3):  # libraryPropertyType: major, minor, patch
        value = ctypes.c_int()
        if get(which, ctypes.byref(value)) != 0:
            return None
        parts.append(str(value.value))
    return ".".join(parts)


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # no module, no library or no permission: the row says null
        return None
    return version.decode() if isinstance(version, bytes) else version


def _nvml():
    """NVML, and its handle of the current CUDA device; None if either is missing."""
    import torch

    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    index = torch.cuda.current_device()
    try:
        uuid = torch.cuda.get_device_properties(index).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except (AttributeError, pynvml.NVMLError):
        try:  # a virtualised uuid
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(_among_all(index))
        except pynvml.NVMLError:
            return None


def meter() -> Callable[[], tuple[float, float]] | None:
    """A function that reads the joules the current CUDA device has drawn, and its SMs' MHz.

    The joules count from when the driver was loaded. None where NVML doesn't count them.
    """
    if not (found := _nvml()):
        return None
    pynvml, handle = found

    def read() -> tuple[float, float]:
        joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
        return joules, pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)

    try:
        read()
    except pynvml.NVMLError:
        return None
    return read


def probe() -> Callable[[], State]:
    """A function that reads the current CUDA device's state; it reads nothing without NVML."""
    if not (found := _nvml()):
        return State
    pynvml, handle = found

    def attempt(read: Callable[[], float | None]) -> float | None:
        try:
            return read()
        except pynvml.NVMLError:
            return None

    def instant_power() -> float | None:
        # nvmlDeviceGetPowerUsage averages over a second, which holds many competitors.
        value = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
        return value.value.uiVal / 1e3 if value.nvmlReturn == pynvml.NVML_SUCCESS else None

    highest = attempt(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    most = attempt(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3)

    def state() -> State:
        mhz = attempt(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        power = attempt(instant_power)
        return State(
            sm_mhz=mhz,
            power_w=power,
            temperature_c=attempt(
                lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
            limited=_limited(mhz, highest, power, most),
        )

    return state


def _among_all(index: int) -> int:
    """NVML's index of a CUDA device; NVML does not heed CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if index < len(visible) and visible[index].strip().isdecimal():
        return int(visible[index])
    return index


def _limited(
    mhz: float | None, highest: float | None, power: float | None, most: float | None
) -> bool | None:
    """Whether a clock and a power in use are limited, given the largest of both."""
    if mhz is None or highest is None:
        return None
    return mhz < 0.98 * highest or (power is not None and most is not None and power > 0.93 * most)
