"""The contract a rung fulfils: what it is called, what it refuses, how it is launched."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

from .problem import Problem

HEADER_KEYS = ("Adds to", "Mirrors", "Compiler does", "Signs", "Needs", "Note")

TRITON_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int8: tl.int8,
    torch.int32: tl.int32,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Tile sizes in elements, warps per program, shared-memory stages and raster order."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    num_warps: int = 4
    num_stages: int = 1
    ORDER: str = "linear"
    GROUP_M: int = 16

    def __str__(self) -> str:
        order = f"{self.ORDER} {self.GROUP_M}" if self.ORDER == "grouped" else self.ORDER
        warps = f"{self.num_warps} warp{'s' * (self.num_warps > 1)}"
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        return f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K}, {warps}, {stages}, {order} order"

    def tiles(self, problem: Problem) -> int:
        """Output tiles of the whole problem, all batches together."""
        rows = triton.cdiv(problem.M, self.BLOCK_M)
        return rows * triton.cdiv(problem.N, self.BLOCK_N) * problem.batch


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel call: `fn[grid](*args, **options)`."""

    grid: tuple[int, ...]
    args: dict[str, Any]
    options: dict[str, Any]


#: Per architecture: the mnemonics that must appear, and those that must not.
Signs = Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]


def parse_title(doc: str) -> str:
    """The first line without the word before its colon."""
    return doc.strip().splitlines()[0].partition(": ")[2].rstrip(".")


def parse_header(doc: str, keys: Sequence[str]) -> Mapping[str, str]:
    """The text after each of the `keys` that open a line; other lines continue the last key's."""
    fields: dict[str, str] = {}
    for line in doc.strip().splitlines()[1:]:
        key = next((key for key in keys if line.startswith(key + " ")), None)
        if key:
            fields[key] = line[len(key) :].strip()
        elif line.strip():
            last = next(reversed(fields))
            fields[last] += " " + line.strip()
    return fields


def parse_signs(text: str) -> Signs:
    """Of "sm_80: HMMA, no LDGSTS; sm_90: HGMMA"."""
    signs = {}
    for clause in text.split(";"):
        arch, _, words = clause.strip().partition(": ")
        words = [word.strip() for word in words.split(",")]
        signs[int(arch.removeprefix("sm_"))] = (
            tuple(word for word in words if not word.startswith("no ")),
            tuple(word[3:] for word in words if word.startswith("no ")),
        )
    return signs


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """A rung of a ladder, in whatever language: all that tools, tests and measurements know of it.

    `doc` is the rung's header, of which `title`, `header` and `signs` are read.
    """

    doc: str
    configs: Callable[[Problem], tuple[Config, ...]]
    why_not: Callable[[Problem], str | None] = lambda problem: None

    header_keys: ClassVar[tuple[str, ...]] = HEADER_KEYS

    @property
    def number(self) -> int:
        """The rung's place on its ladder."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The rung's public name."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The header's first line without the rung's word."""
        return parse_title(self.doc)

    @property
    def header(self) -> Mapping[str, str]:
        """The header's keys (`header_keys`) and their text."""
        return parse_header(self.doc, self.header_keys)

    @property
    def signs(self) -> Signs:
        """Per architecture (80, 90): the SASS mnemonics that must and that must not appear."""
        return parse_signs(self.header["Signs"])

    def launch(self, problem: Problem, config: Config, a, b, c) -> None:
        """Write the product of `a` and `b` into `c` on the current stream."""
        raise NotImplementedError


def find(name: str, kernels: Sequence[Kernel]) -> Kernel:
    """The rung called `name`; ValueError with all names if there is none."""
    for kernel in kernels:
        if kernel.name == name:
            return kernel
    raise ValueError(f"no rung is called {name!r}; there are {', '.join(k.name for k in kernels)}")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What a jit function is called with, by name, in two parts.

    `fixed(problem, config)` follows from the problem and is kept; `tensors(problem, config, a, b,
    c)` is made at every call, because it holds addresses.
    """

    fixed: Callable[[Problem, Config], dict[str, Any]]
    tensors: Callable[[Problem, Config, Any, Any, Any], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TritonKernel(Kernel):
    """A rung in Triton; `interpreted` is its config in Triton's interpreter.

    `module` and `doc` are the rung file's `__name__` and `__doc__`. The file's number and word,
    `kNN_word.py`, are the rung's address and its public name.
    """

    module: str
    fn: Any
    arguments: Arguments
    grid: Callable[[Problem, Config], int] = lambda problem, config: config.tiles(problem)
    interpreted: Config

    @property
    def number(self) -> int:
        return int(self._address.group(1))

    @property
    def name(self) -> str:
        return self._address.group(2)

    @property
    def _address(self) -> re.Match[str]:
        stem = self.module.rpartition(".")[2]
        match = re.fullmatch(r"k(\d\d)_(\w+)", stem)
        assert match, f"a rung's file is called kNN_word.py, not {stem}.py"
        return match

    def prepare(self, problem: Problem, config: Config, a, b, c) -> Launch:
        """The grid and arguments of one call; `a`, `b`, `c` may be meta tensors (for `asm`)."""
        call = _fixed_part(self, problem, config)
        args = call.args | self.arguments.tensors(problem, config, a, b, c)
        return Launch(call.grid, args, call.options)

    def launch(self, problem: Problem, config: Config, a, b, c) -> None:
        call = self.prepare(problem, config, a, b, c)
        self.fn[call.grid](**call.args, **call.options)


@functools.lru_cache(maxsize=4096)
def _fixed_part(kernel: TritonKernel, problem: Problem, config: Config) -> Launch:
    """The part of a launch that is the same at every call, of what the jit function names."""
    values = kernel.arguments.fixed(problem, config) | {
        "BLOCK_M": config.BLOCK_M,
        "BLOCK_N": config.BLOCK_N,
        "BLOCK_K": config.BLOCK_K,
        "STAGES": config.num_stages,
        "ORDER": config.ORDER,
        "GROUP_M": config.GROUP_M,
        "BATCHED": problem.batch > 1,
        "WIDE": problem.wide,
        "EVEN_K": problem.K % config.BLOCK_K == 0,
        "PRECISION": problem.precision,
        "ACC": TRITON_DTYPE[problem.accumulate],
    }
    known = set(kernel.fn.arg_names)
    return Launch(
        grid=(kernel.grid(problem, config),),
        args={name: value for name, value in values.items() if name in known},
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
