"""The ladder: one line per rung, in reading order."""

import copyreg
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from . import spec
from .spec import Kernel

#: Values of `kernel=`: auto, or a rung. One per line, in the ladder's order.
Rung = Literal[
    "auto",
    "simt",
    "naive",
    "tiled",
    "swizzled",
    "permuted",
    "async",
    "async_pg2s",
    "async_pg2s_ps2r",
    "async_stages",
    "pipelined",
    "tma",
    "persistent",
    "warp_specialized",
    "pingpong",
    "split_k",
    "stream_k",
    "gemv",
    "cluster",
    "cluster_pingpong",
    "multicast_split_k",
    "cluster_split_k",
    "symmetric",
    "grouped",
    "scaled",
    "sgemm",
    "dgemm",
]

#: The folder of the rungs' files; a file's name also gives the rung's number.
_KERNELS = Path(__file__).parent / "kernels"


def _file_of(name: str) -> str:
    (path,) = _KERNELS.glob(f"k[0-9][0-9]_{name}.py")
    return path.stem


RUNGS: tuple[Kernel, ...] = tuple(
    import_module(f".kernels.{_file_of(name)}", __package__).KERNEL for name in get_args(Rung)[1:]
)

#: The steps of the ladder, in reading order: each adds one idea to the previous one.
STEPS: tuple[Kernel, ...] = tuple(rung for rung in RUNGS if not rung.policy.branch)


class Ladder(tuple[Kernel, ...]):
    """The rungs, in reading order; prints as a table."""

    def __str__(self) -> str:
        width = max(len(k.name) for k in self)
        return "\n".join(f"{k.number:02} {k.name:<{width}} {k.title}" for k in self)

    __repr__ = __str__


def find(name: str) -> Kernel:
    """The rung called `name`; ValueError with all names if there is none."""
    return spec.find(name, RUNGS)


def _reduced(kernel: Kernel) -> str | tuple:
    """Pickles a rung as its name, since functions can't be pickled; other kernels as they are."""
    if any(rung is kernel for rung in RUNGS):
        return find, (kernel.name,)
    return object.__reduce_ex__(kernel, 4)


for _kind in {type(rung) for rung in RUNGS}:
    copyreg.pickle(_kind, _reduced)


def ladder() -> Ladder:
    """Every kernel that `matmul(kernel=...)` accepts, in reading order.

    Each has `name`, `number`, `title`, `header` (what it adds, what it mirrors in CUDA, what the
    compiler does, its SASS signs, its needs) and `why_not(problem)`.
    """
    return Ladder(RUNGS)
