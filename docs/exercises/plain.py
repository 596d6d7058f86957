"""Functions of the kernels on plain integers, with notes in place of the machine.

`docs.pictures.formulas` runs whole files that only compute places. Here one function of any file
runs, and the mainloop of clusters runs with a stand-in for PTX that writes down what it is asked.
"""

import ast
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from docs.pictures import formulas

KERNELS = formulas.DEVICE.parent
#: Bytes of a line of the stages.
LINE = 128


def function(file: str, name: str, **names: Any) -> Callable[..., Any]:
    """A function of a file of tritemm/kernels/, without its decorators; `names` are all that it
    knows besides its arguments."""
    tree = formulas._Plain().visit(ast.parse((KERNELS / file).read_text()))
    (found,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    found.decorator_list = []
    body = ast.fix_missing_locations(ast.Module([found], []))
    exec(compile(body, file, "exec"), names)  # annotations are not evaluated, as in this file
    return names[name]


def nothing(*arguments: Any) -> None:
    """In place of what a check has no use for."""


@dataclasses.dataclass
class Notes:
    """What a program of a cluster asked of PTX.

    `loads`: the line at which each begins to arrive, and in how many programs. `expected`: bytes
    that barriers were told to wait for. `waits`: the places of barriers, and the parities.
    """

    loads: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    expected: list[int] = dataclasses.field(default_factory=list)
    waits: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def names(self) -> dict[str, Any]:
        """In place of what the mainloop imports; shared memory begins at 0."""

        def load(to, bar, slow, fast, b0, b1, tensor_map, batched, programs):
            self.loads.append((to // LINE, programs))

        ptx = SimpleNamespace(
            is_first_warp=lambda: True, barrier_arrive=nothing, tma_load=load,
            barrier_wait=lambda bar, parity: self.waits.append((bar // 8, parity)),
            barrier_expect=lambda bar, count: self.expected.append(count),
        )  # fmt: skip
        return {
            "ptx": ptx, "shared_memory": lambda: 0, "tensor_map": nothing,
            "matrix_descriptor": lambda address, leading: address,
            "line_of": lambda shape: LINE // 2,  # elements of 16 bits
            "wgmma_first": lambda *_: ("sums",), "wgmma": lambda acc, *_: acc,
            "wgmma_wait": lambda acc, pending: acc,
        }  # fmt: skip


@contextlib.contextmanager
def cluster_loop(shape: SimpleNamespace, program: int, notes: Notes) -> Iterator[SimpleNamespace]:
    """The file cluster_mainloop, with a `loop` of this shape, as a program runs it."""
    kernel = formulas.module("cluster_mainloop", program, shape.CLUSTER)
    names = kernel.ClusterMainloop.load.__globals__
    with mock.patch.dict(names, notes.names()):
        large = SimpleNamespace(shape=(math.inf, math.inf))  # C doesn't end within a cluster
        loop = kernel.ClusterMainloop(None, large, large, None, "kernel", shape)
        yield SimpleNamespace(**vars(kernel), loop=loop)
