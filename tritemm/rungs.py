"""The ladder: one line per rung, slowest first."""

from importlib import import_module

from . import spec
from .spec import Kernel

_FILES = (
    "k01_simt",
    "k02_naive",
    "k03_tiled",
    "k04_swizzled",
    "k05_permuted",
    "k06_async",
    "k07_async_pg2s",
    "k07_async_pg2s_ps2r",
    "k07_async_stages",
    "k07_pipelined",
    "k08_tma",
    "k09_persistent",
    "k10_warp_specialized",
    "k11_pingpong",
    "k12_split_k",
    "k13_stream_k",
    "k14_gemv",
    "k15_cluster",
    "k16_cluster_pingpong",
    "k17_multicast_split_k",
    "k18_cluster_split_k",
)

RUNGS: tuple[Kernel, ...] = tuple(
    import_module(f".kernels.{file}", __package__).KERNEL for file in _FILES
)

#: The steps of the ladder, in reading order: each adds one idea to the one before.
STEPS: tuple[Kernel, ...] = tuple(rung for rung in RUNGS if not rung.branch)


class Ladder(tuple[Kernel, ...]):
    """The rungs, slowest first; prints as a table."""

    def __str__(self) -> str:
        width = max(len(k.name) for k in self)
        return "\n".join(f"{k.number:02} {k.name:<{width}} {k.title}" for k in self)

    __repr__ = __str__


def find(name: str) -> Kernel:
    """The rung called `name`; ValueError with all names if there is none."""
    return spec.find(name, RUNGS)


def ladder() -> Ladder:
    """Every kernel that `matmul(kernel=...)` can be asked for, slowest first.

    Each has `name`, `number`, `title`, `header` (what it adds, what it mirrors in CUDA, what the
    compiler does, its SASS signs, its needs) and `why_not(problem)`.
    """
    return Ladder(RUNGS)
