"""The ladder: one line per rung, slowest first."""

from importlib import import_module

from .spec import Kernel

_FILES = (
    "k01_simt",
    "k02_naive",
    "k03_tiled",
    "k04_swizzled",
    "k07_pipelined",
    "k08_tma",
    "k09_persistent",
)

RUNGS: tuple[Kernel, ...] = tuple(
    import_module(f".kernels.{file}", __package__).KERNEL for file in _FILES
)
