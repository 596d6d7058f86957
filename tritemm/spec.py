"""The contract a rung fulfils: what it is called, what it refuses, how it is launched."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import triton.language as tl

from .problem import INTERPRETER, Config, Need, Problem, Tile, refusal
from .runtime import binding, triton_private
from .runtime.torch_private import current_stream
from .runtime.workspace import Room

HEADER_KEYS = ("Adds to", "Mirrors", "Compiler does", "Signs", "Needs", "Note")

TRITON_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
    torch.int32: tl.int32,
    torch.uint8: tl.uint8,
}


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel call: `fn[grid](*args, **options)`."""

    grid: tuple[int, ...]
    args: dict[str, Any]
    options: dict[str, Any]


#: Per architecture: the mnemonics that must appear, and those that must not.
Signs = Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]


def parse_title(doc: str | None) -> str:
    """The first line after the colon; "" under `python -OO`, which strips docstrings."""
    if doc is None:
        return ""
    return doc.strip().splitlines()[0].partition(": ")[2].rstrip(".")


def parse_header(doc: str | None, keys: Sequence[str]) -> Mapping[str, str]:
    """The text after each of the `keys` that begin a line; others continue the previous key."""
    fields: dict[str, str] = {}
    for line in (doc or "").strip().splitlines()[1:]:
        key = next((key for key in keys if line.startswith(key + " ")), None)
        if key:
            fields[key] = line[len(key) :].strip()
        elif line.strip():
            last = next(reversed(fields))
            fields[last] += " " + line.strip()
    return fields


def parse_signs(text: str) -> Signs:
    """Signs that a header lists as "sm_80: HMMA, no LDGSTS; sm_90: HGMMA"."""
    signs = {}
    for clause in text.split(";"):
        arch, _, listed = clause.strip().partition(": ")
        words = [word.strip() for word in listed.split(",")]
        signs[int(arch.removeprefix("sm_"))] = (
            tuple(word for word in words if not word.startswith("no ")),
            tuple(word[3:] for word in words if word.startswith("no ")),
        )
    return signs


#: Memory that a kernel needs during a call, for partial sums and counters, if any.
Workspace = Callable[[Problem, Config], Room | None]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a rung can run.

    `configs` are its own tiles for a problem, its first choice first. A problem's `needs` are
    checked in this order; a config that `configs` doesn't list is checked as a `tile`, which has
    needs of its own.
    """

    configs: Callable[[Problem], tuple[Config, ...]]
    needs: tuple[Need, ...] = ()
    tile: type[Tile] = Tile
    #: The only type of operands that it supports, if there is only one.
    dtype: torch.dtype | None = None
    #: Whether tile sizes other than powers of two are allowed; `tile` says which.
    odd_tiles: bool = False
    #: Whether it computes the triangle of a symmetric C.
    symmetric: bool = False
    #: Values of `Problem.groups` that it computes.
    groups: str = ""
    #: Values of `Problem.sums` that it computes for operands with scales.
    sums: tuple[str, ...] = ()
    #: Whether it can cut K into `Config.PARTS`.
    fixed_parts: bool = False
    #: Whether the terms of a sum are added in the order of K, for every size and tile, in all
    #: configs whose SPLIT_K is 1.
    in_order: bool = True
    #: The configs whose sums have that order, with K in `Config.PARTS` parts: for rungs that are
    #: not `in_order`, or that have such configs besides their own.
    ordered: Callable[[Problem, int], Sequence[Config]] | None = None


@dataclasses.dataclass(frozen=True)
class Policy:
    """When kernel="auto" considers a rung."""

    #: Whether auto compares the rung with others; else it runs only if none of them can.
    auto: bool = True
    #: Whether auto skips all rungs below if this one can run.
    supersedes: bool = False
    #: Whether auto considers the rung for a problem that it can run.
    suits: Callable[[Problem], bool] = lambda problem: True
    #: Whether auto considers swapped operands though no side of C is short.
    swap: Callable[[Problem], bool] = lambda problem: False
    #: For a kernel made for few rows of C, but correct for any number: how many are few.
    few_rows: Callable[[Problem], int] | None = None
    #: The purpose of a rung that is no step of the ladder: the reading order skips it.
    branch: str = ""


@dataclasses.dataclass(frozen=True)
class CostHint:
    """How a rung spends its time, as far as measurements don't say."""

    #: Its fraction of the tensor cores' rate.
    efficiency: float = 0.5
    #: Slowdown of its loads if they are not 16 bytes wide.
    narrow: float = 1.0
    #: Whether there is one program per SM, which walks the tiles.
    persistent: bool = False
    #: The fraction of a tile's prologue and epilogue that overlaps another tile's arithmetic.
    epilogue_overlap: float = 0.0
    #: Whether each consumer has a tile of its own.
    pingpong: bool = False
    #: Whether the last, incomplete wave of tiles is cut into shares.
    stream_k: bool = False
    #: Whether a cluster computes one tile; its programs share K and exchange their sums.
    exchanges: bool = False
    #: Whether a load takes equally long for every tile: programs without a ring issue the loads of
    #: all their stages at once and wait for them, while other programs on their SM work.
    independent_ctas: bool = False
    #: Whether an A that WGMMA can't read as stored goes through registers.
    a_registers: bool = False
    #: Whether FFMA reads B as it is stored, and while it multiplies.
    register_tiles: bool = False
    #: The time to add up the parts of a split K, relative to other rungs.
    gathering: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """A rung of a ladder, in any language: all that tools, tests and benchmarks know about it.

    `doc` is the rung's header; `title`, `header` and `signs` are parsed from it.
    """

    doc: str
    limits: Limits
    policy: Policy = Policy()
    cost: CostHint = CostHint(narrow=4.0)

    header_keys: ClassVar[tuple[str, ...]] = HEADER_KEYS

    def __repr__(self) -> str:
        return f"<rung {self.number:02} {self.name}>"

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

    def why_not(self, problem: Problem) -> str | None:
        """Why it can't run the problem, in one sentence; None if it can."""
        if problem.epilogue.symmetric and not self.limits.symmetric:
            return "it doesn't support a symmetric C"
        if problem.groups and problem.groups not in self.limits.groups:
            axis = problem.groups.upper()
            return f"{axis} is cut into groups, but this rung's batches all have one size"
        if problem.scales and problem.sums not in self.limits.sums:
            how = {"whole": "have scales", "block": "have scales of blocks"}
            return f"operands {how.get(problem.sums, 'of fp8 are promoted every 128 terms')}"
        if problem.planes:
            if problem.sums not in self.limits.sums:
                return "K runs over planes, which it doesn't support"
            if problem.epilogue.symmetric or problem.groups:
                return "planes don't support symmetric products or groups"
        elif problem.only_split and problem.device != INTERPRETER:
            what = "residues" if problem.by_residues else "planes"
            made = 'kernel="auto" or a config with PACK="ab" makes on sm_90; elsewhere use ieee'
            return f"{problem.precision} is a product of {what}, which {made}"
        return refusal(self.limits.needs, problem)

    def configs(self, problem: Problem) -> tuple[Config, ...]:
        """Its own tiles for a problem."""
        return self.limits.configs(problem)

    def config_why_not(self, problem: Problem, config: Config) -> str | None:
        """Why a config that `configs` doesn't list can't run a problem that the rung can."""
        return self.limits.tile.why_not(problem, config)

    def launch(self, problem: Problem, config: Config, a, b, c, *more) -> binding.Call | None:
        """Write the product of `a` and `b` into `c` on the current stream.

        `more`: the problem's further inputs, in the order of `Problem.arguments`. Returns what
        repeats the launch with other addresses of a, b, c, the workspace and these inputs, or
        None if it can't be repeated.
        """
        raise NotImplementedError

    def in_one_order(self, problem: Problem, parts: int) -> Sequence[Config]:
        """The configs whose sums have the order of K, with `parts` as `Config.PARTS`, if any."""
        limits = self.limits
        if parts > 1 and not limits.fixed_parts:
            return ()
        if limits.ordered:
            return limits.ordered(problem, parts)
        return [c for c in self.configs(problem) if c.SPLIT_K == 1] if limits.in_order else ()

    @property
    def workspace(self) -> Workspace | None:
        """How much memory a call needs besides a, b and c; None if it never needs any."""
        return None


def find(name: str, kernels: Sequence[Kernel]) -> Kernel:
    """The rung called `name`; ValueError with all names if there is none."""
    for kernel in kernels:
        if kernel.name == name:
            return kernel
    raise ValueError(f"no rung is called {name!r}; there are {', '.join(k.name for k in kernels)}")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of a jit function, by name.

    `fixed(problem, config)` depends on the problem. `tensors(problem, config, a, b, c, *work)` has
    the tensors among its operands, and their descriptors; `work` is what `workspace` says: partial
    sums and counters, or nothing. Which tensor is which argument must depend on the problem and the
    config alone, because only addresses are replaced when a call is repeated (`runtime.binding`).
    """

    fixed: Callable[[Problem, Config], dict[str, Any]]
    tensors: Callable[..., dict[str, Any]]
    workspace: Workspace | None = None
    #: Launch options besides warps and stages, such as `maxnreg` (registers per thread).
    options: Callable[[Problem, Config], dict[str, Any]] = lambda problem, config: {}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TritonKernel(Kernel):
    """A rung in Triton; `interpreted` is its config in Triton's interpreter.

    `module` and `doc` are the rung file's `__name__` and `__doc__`. The file name, `kNN_word.py`,
    gives the rung's number and its public name.
    """

    module: str
    fn: Any
    arguments: Arguments
    grid: Callable[[Problem, Config], int] = lambda problem, config: config.tiles(problem)
    interpreted: Config | None
    #: Programs per cluster, for a rung whose grid counts clusters.
    clusters: Callable[[Config], int] | None = None

    @functools.cached_property
    def number(self) -> int:
        return int(self._address.group(1))

    @functools.cached_property
    def name(self) -> str:
        return self._address.group(2)

    @property
    def _address(self) -> re.Match[str]:
        stem = self.module.rpartition(".")[2]
        match = re.fullmatch(r"k(\d\d)_(\w+)", stem)
        assert match, f"a rung's file must be named kNN_word.py, not {stem}.py"
        return match

    def prepare(self, problem: Problem, config: Config, a, b, c, *more) -> Launch:
        """The grid and arguments of one call; tensors may be meta tensors (for `asm`)."""
        return self._prepare(problem, config, self._operands(problem, config, a, b, c, *more))

    def _operands(self, problem: Problem, config: Config, a, b, c, *more) -> tuple:
        """a, b, c, the problem's further inputs, and the workspace; each a separate object."""
        room = self.workspace and self.workspace(problem, config)
        work = room.tensors(c.device) if room else ()
        # C may be its own residual.
        inputs = [t.detach() if isinstance(t, torch.Tensor) else t for t in more]
        return (a, b.detach() if b is a else b, c, *inputs, *work)

    def _prepare(self, problem: Problem, config: Config, operands) -> Launch:
        call = _fixed_part(self, problem, config)
        a, b, c, *more = operands
        names = problem.arguments
        work = more[len(names) :]
        args = call.args | self.arguments.tensors(problem, config, a, b, c, *work)
        args |= zip(names, more, strict=False)
        return Launch(call.grid, args, call.options)

    def launch(self, problem: Problem, config: Config, a, b, c, *more) -> binding.Call | None:
        operands = self._operands(problem, config, a, b, c, *more)
        if c.is_cuda and triton_private.plain():
            short = self._bind(problem, config, operands)
            if short is not None:
                stream = current_stream(c.get_device())
                short(stream, [t if isinstance(t, float) else t.data_ptr() for t in operands])
                return short
        call = self._prepare(problem, config, operands)
        if self.clusters:
            size = self.clusters(config)
            binding.compile_kernel(self.fn, call.grid, call.args, call.options, size)
        self.fn[call.grid](**call.args, **call.options)
        return None

    @property
    def workspace(self) -> Workspace | None:
        return self.arguments.workspace

    def _bind(self, problem: Problem, config: Config, operands) -> binding.Call | None:
        """The launch, prepared once for a problem, a config and a device; None if Triton has to.

        The problem determines everything but the addresses: sizes, strides, types and the alignment
        of each operand, by which Triton specialises the kernel and its arguments. Factors are
        passed at each launch, like addresses: after the tensors', before the workspace's.
        """
        device = operands[2].get_device()

        def make() -> binding.Call | None:
            call = self._prepare(problem, config, operands)
            size = self.clusters(config) if self.clusters else 1
            names = (None, None, None, *problem.arguments)
            places: list[Any] = [
                name if isinstance(operand, float) else operand
                for name, operand in itertools.zip_longest(names, operands)
            ]
            return binding.bind(self.fn, call.grid, call.args, call.options, places, device, size)

        return binding.call_of((self, problem, config, device), make)


@functools.lru_cache(maxsize=4096)
def _fixed_part(kernel: TritonKernel, problem: Problem, config: Config) -> Launch:
    """The arguments of a launch that are the same at every call, as far as the function names them.

    Those that the problem lacks, such as a bias, are None; so are those that each call passes.
    """
    names, residual, scales = kernel.fn.arg_names, problem.epilogue.residual, problem.scales
    values = {} if "SHAPE" in names else _constants(problem, config)
    if residual:
        values |= zip(_STRIDES, residual.strides, strict=True)
    if scales:
        values |= zip(_SCALE_STRIDES, scales.a.strides[1:] + scales.b.strides[1:], strict=True)
    values |= kernel.arguments.fixed(problem, config)
    triton_private.settle(kernel.fn)  # for anyone who compiles it
    return Launch(
        grid=(kernel.grid(problem, config),),
        args={name: values.get(name) for name in names},
        options={
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            # Bits depend on it, and Triton's default is another from 3.10 on.
            "enable_fp_fusion": True,
            **kernel.arguments.options(problem, config),
        },
    )


#: Strides of a residual, and of scales.
_STRIDES = ("stride_r0", "stride_r1", "stride_rm", "stride_rn")
_SCALE_STRIDES = tuple(f"stride_s{operand}{axis}" for operand in ("a", "b") for axis in "1lk")


def _constants(problem: Problem, config: Config) -> dict[str, Any]:
    """Constants that jit functions without a `Shape` may name."""
    return {
        "BLOCK_M": config.BLOCK_M,
        "BLOCK_N": config.BLOCK_N,
        "BLOCK_K": config.BLOCK_K,
        "STAGES": config.num_stages,
        "ORDER": config.ORDER,
        "GROUP_M": config.GROUP_M,
        "BATCHED": problem.batched,
        "TRIANGULAR": problem.epilogue.symmetric,
        "GROUPS": problem.groups,
        "WIDE": problem.wide,
        "EVEN_K": problem.K % config.BLOCK_K == 0,
        "PRECISION": problem.precision,
        "ACC": TRITON_DTYPE[problem.accumulate],
        "BIAS": problem.epilogue.along,
        "ACTIVATION": problem.epilogue.activation,
        "SUMS": problem.sums,
        "A_LINES": problem.lines_per_scale[0],
        "B_LINES": problem.lines_per_scale[1],
    }
