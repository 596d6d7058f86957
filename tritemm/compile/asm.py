"""PTX and SASS of any rung for any problem and architecture, without a GPU.

A job takes the path of a real launch (problem, refusal, config, arguments, `fn.warmup`) with meta
tensors instead of data and a stand-in for the CUDA driver. Kernels decorated for Triton's
interpreter cannot be compiled in the same process; a worker process does it then.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from ..arch.gpus import DEVICES, named
from ..dtypes import (
    PRECISIONS,
    REAL,
    accumulator_type,
    check_precision,
    checked_epilogue,
    resolve,
    result_type,
)
from ..machine.command import refuse
from ..problem import (
    ACCUMULATE,
    ACTIVATIONS,
    FP8,
    GATED,
    INTERPRETED,
    RECIPES,
    Layout,
    Problem,
    empty_scale,
    short_name,
    stored,
)
from ..rungs import RUNGS, find
from ..spec import TRITON_DTYPE, Config, Kernel
from . import pool
from .sass import (
    count_instructions,
    count_of,
    disassemble,
    group_of,
    instruction_table,
    parse_usage,
    run_tool,
)

#: Activations of sums, and of pairs of sums.
_ACTIVATIONS = (*filter(None, ACTIVATIONS), *GATED)
#: Levels of detail: resource usage; plus instruction counts; plus the texts.
DETAILS = ("usage", "mix", "text")

LAYOUTS = get_args(Layout)
#: The commands' default layout, that of `torch.nn.functional.linear`.
LAYOUT = "NT"
#: Types by their short names; torch's own names work as well.
DTYPES = {short_name(dtype): dtype for dtype in TRITON_DTYPE}
#: Types of operands that have scales, and of their sums.
NARROW = dict.fromkeys(FP8, torch.float32) | {torch.int8: torch.int32}
OPERANDS = [short_name(dtype) for dtype in ACCUMULATE]


def own_type(kernel: Kernel) -> str:
    """bf16, or the rung's type if it supports only one."""
    return short_name(kernel.limits.dtype or torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class Job:
    """One kernel to compile: a rung, an architecture, a problem and a config of the rung.

    `layout` is that of A and B, N as written or T transposed. `batch` is C's; `a_batch` and
    `b_batch` are those of A and B before they are broadcast to it, by default the same.
    `config` is an index into the rung's configs for the problem, or a `Config`. Types are
    names: "bf16" or "bfloat16"; the operands' is by default the rung's own.
    `activation`, `bias` and `residual` (both of the result's type) are the epilogue's; with
    swiglu or geglu, C has N / 2 columns; a `symmetric` C is square. The products of the `batch`
    are `groups` if that is m, n or k, the dimension that is cut. `scales` are the recipes of A's
    and B's scales, "row,block2d", for operands of fp8_e4m3fn, fp8_e5m2 or int8; fp8 sums are then
    promoted unless they are `fast`, and groups of K are in blocks. An unknown value raises
    ValueError.
    """

    rung: str
    sm: int = 90
    M: int = 4096
    N: int = 4096
    K: int = 4096
    layout: str = "NN"
    dtype: str = ""
    out_dtype: str | None = None
    accumulate: str | None = None
    precision: str = "ieee"
    batch: tuple[int, ...] = ()
    a_batch: tuple[int, ...] | None = None
    b_batch: tuple[int, ...] | None = None
    config: int | Config = 0
    activation: str = ""
    bias: bool = False
    residual: bool = False
    symmetric: bool = False
    groups: str = ""
    scales: str = ""
    fast: bool = False

    def __post_init__(self) -> None:
        _one_of("rung", self.rung, [rung.name for rung in RUNGS])
        if not self.dtype:
            object.__setattr__(self, "dtype", own_type(self.kernel))
        named(self.sm)
        _one_of("layout", self.layout, LAYOUTS)
        _one_of("activation", self.activation, ("", *_ACTIVATIONS))
        if self.activation in GATED and self.N % 2:
            raise ValueError(f"N is {self.N}; {self.activation} takes pairs of columns")
        if self.symmetric and self.M != self.N:
            raise ValueError(f"M and N are {self.M} and {self.N}, but a symmetric C is square")
        _one_of("groups", self.groups, ("", "m", "n", "k"))
        if self.scales:
            self._check_scales()
        else:
            check_precision(self.precision, self.types[0])
        if self.fast and not (self.scales and self.types[0].is_floating_point):
            raise ValueError("fast is for fp8 with scales")
        if min(self.M, self.N, self.K) < 1:
            raise ValueError(f"M, N and K are {self.M}, {self.N} and {self.K}; at least 1 each")
        if 8 * max(self.M * self.K, self.K * self.N, self.M * self.N) >= 1 << 63:
            raise ValueError(
                f"M, N and K are {self.M}, {self.N} and {self.K}; a matrix of them has more bytes "
                "than can be counted in 64 bits"
            )
        checked_epilogue(torch.float32 if self.scales else self.types[0], self.activation)

    def _check_scales(self) -> None:
        words = self.scales.split(",")
        if len(words) != 2:
            raise ValueError(f"scales must name A's recipe and B's, not {self.scales!r}")
        for word in words:
            _one_of("recipe", word, RECIPES)
            if self.types[0] == torch.int8 and word.startswith("block"):
                raise ValueError("scales of int8 cover all of K: use tensor or row")
        if self.accumulate or self.precision != "ieee":
            raise ValueError("accumulate and precision are for operands without scales")

    @property
    def kernel(self) -> Kernel:
        return find(self.rung)

    @property
    def types(self) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
        """Types of operands, accumulator and result, by the rules of `matmul` or `scaled_mm`."""
        if self.scales:
            dtype = _dtype(self.dtype, "type of the operands", NARROW)
            out_dtype = _dtype(self.out_dtype or "bf16", "type of the result", REAL)
            return dtype, NARROW[dtype], out_dtype
        dtype = _dtype(self.dtype, "type of the operands", ACCUMULATE)
        accumulate = accumulator_type(self.accumulate and _dtype(self.accumulate), dtype)
        return dtype, accumulate, result_type(self.out_dtype and _dtype(self.out_dtype), dtype)


@dataclasses.dataclass(frozen=True)
class Code:
    """What one job compiled to. Counts are of instructions in the binary, not of executions.

    `mix` counts base mnemonics (HGMMA), `variants` full ones (HGMMA.64x256x16.F32.BF16) of the
    `sass.GROUPS`; both, and the texts, are empty at lower levels of detail.
    `registers` and `spills` (bytes of stack) are per thread, `shared` (bytes) and `warps` per
    program.
    """

    rung: str
    arch: int
    problem: str
    config: str
    registers: int
    spills: int
    shared: int
    warps: int
    mix: dict[str, int] = dataclasses.field(default_factory=dict)
    variants: dict[str, int] = dataclasses.field(default_factory=dict)
    ptx: str = ""
    sass: str = ""

    @property
    def limit(self) -> int:
        """Bytes of shared memory that one program can use on this architecture."""
        return DEVICES[self.arch].shared

    @property
    def fits(self) -> bool:
        return self.shared <= self.limit

    @property
    def local(self) -> int:
        """Instructions that load from or store to local memory."""
        return self.count("LDL") + self.count("STL")

    def count(self, mnemonic: str) -> int:
        """Instructions of a base mnemonic (HMMA), or of a longer one (HGMMA.64x256x16)."""
        if not self.mix:
            raise ValueError(f"{self.rung} was compiled without its instruction mix")
        return count_of(mnemonic, self.mix, self.variants)

    def group(self, group: str) -> dict[str, int]:
        """The part of `variants` that belongs to one of the `sass.GROUPS`, most frequent first."""
        return group_of(self.variants, group)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no code: the sentence of the `kernel`, or the error of the `compiler`."""

    rung: str
    arch: int
    reason: str
    by: str = "kernel"


def problem_of(job: Job) -> Problem:
    """The job's problem on the job's architecture, with meta tensors."""
    dtype, accumulate, out_dtype = job.types
    columns = job.N // (2 if job.activation in GATED else 1)
    cuts = ("m", "k"), ("n", "k"), ("m", "n")  # of A, B and C; if cut, without batch
    of_a, of_b, of_c = (() if job.groups in cut else job.batch for cut in cuts)
    scales = None
    if job.scales:
        first, second = job.scales.split(",")
        of_both = _scale(job, job.M, first, of_a), _scale(job, job.N, second, of_b)
        scales = (*of_both, dtype != torch.int8 and not job.fast)
    c = _operand(job.M, columns, "N", out_dtype, None, of_c)
    return Problem.of(
        _operand(job.M, job.K, job.layout[0], dtype, job.a_batch, of_a),
        _operand(job.K, job.N, job.layout[1], dtype, job.b_batch, of_b),
        c,
        accumulate=accumulate,
        precision=resolve(job.precision, dtype),
        device=DEVICES[job.sm],
        activation=job.activation,
        bias=out_dtype if job.bias else None,
        residual=c if job.residual else None,
        symmetric=job.symmetric,
        groups=job.groups,
        scales=scales,
        in_blocks=bool(scales),
    )


def configs_of(job: Job) -> tuple[Config, ...]:
    """The configs that the job's rung offers for the job's problem; none if it refuses."""
    problem = problem_of(job)
    return () if job.kernel.why_not(problem) else job.kernel.configs(problem)


def compile_problem(job: Job, detail: str = "text") -> Code | Refusal:
    """The code of one job; `compile_many` for what it costs and raises."""
    return compile_many([job], detail)[0]


def compile_many(
    jobs: Sequence[Job], detail: str = "text", apart: bool = INTERPRETED
) -> list[Code | Refusal]:
    """The code of each job, in order; takes about half a second each.

    Jobs are compiled in this process, which swaps Triton's active driver meanwhile, so no other
    thread may launch kernels; or `apart`, in a worker process, as they must be if kernels are
    interpreted. A worker takes about three seconds to start: it stays a while for later calls. If
    the compiler crashes it, the job that caused the crash is a Refusal, and a new worker does
    the rest.

    Raises:
        ValueError: `detail` is not one of `DETAILS`, or a config index is out of range.
        RuntimeError: nvdisasm does not read the binaries.

    Example:
        >>> from tritemm.compile import asm
        >>> code = asm.compile_problem(asm.Job("tiled", sm=90))
        >>> code.count("HGMMA") > 0
        True
    """
    _one_of("detail", detail, DETAILS)
    compile = _by_worker if apart else pool.compile_here
    made = [_compiled(job, detail, compile) for job in jobs]
    found = [result for result, _ in made]
    for sm in DEVICES if detail == "mix" else ():  # its binaries are read all at once
        mine = [at for at, (result, binary) in enumerate(made) if binary and result.arch == sm]
        texts = disassemble([made[at][1] for at in mine], sm) if mine else []
        for at, text in zip(mine, texts, strict=True):
            mix, variants = count_instructions(text)
            found[at] = dataclasses.replace(found[at], mix=mix, variants=variants)
    return found


# Compiling


def _by_worker(*item, with_code: bool) -> pool.Compiled:
    return pool.shared().submit(item, with_code).result()


def _compiled(job: Job, detail: str, compile: Callable) -> tuple[Code | Refusal | Any, bytes]:
    """The result of `compile`, a function like `pool.compile_here`, for a job; and its binary."""
    problem, kernel = problem_of(job), job.kernel
    config: Any = job.config
    own = not isinstance(config, Config)
    if reason := kernel.why_not(problem if own else config.view(problem)):
        return Refusal(job.rung, job.sm, reason), b""
    if own:
        configs = kernel.configs(problem)
        if not 0 <= config < len(configs):
            raise ValueError(
                f"{job.rung} has {len(configs)} config{'s' * (len(configs) > 1)} for this problem, "
                f"from 0; there is no {config}"
            )
        config = configs[config]
    made = compile(job.rung, problem, config, with_code=True)
    if not made.code:
        return Refusal(job.rung, job.sm, made.error, "compiler"), b""
    code = Code(
        rung=job.rung,
        arch=job.sm,
        problem=str(problem),
        config=str(config),
        shared=made.shared,
        warps=made.code["warps"],
        **_read(made.code, detail),
    )
    return code, made.code["cubin"]


def _read(code: Mapping[str, Any], detail: str) -> dict[str, Any]:
    """The fields of `Code` that are read from one binary, without the mix."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(code["cubin"])
        registers, spills = parse_usage(run_tool("cuobjdump", "-res-usage", str(cubin)))
        fields: dict[str, Any] = {"registers": registers, "spills": spills}
        if detail != "text":
            return fields
        # Data-flow analysis only annotates branches, and takes a third of the time.
        sass = run_tool("nvdisasm", "-ndf", "-c", str(cubin))
    mix, variants = count_instructions(sass)
    return fields | {"mix": mix, "variants": variants, "ptx": code["ptx"], "sass": sass}


def _operand(rows, cols, layout, dtype, own_batch, batch) -> torch.Tensor:
    """A meta tensor [*batch, rows, cols] with its own batch, broadcast."""
    shape = (*(batch if own_batch is None else own_batch), rows, cols)
    own = stored(torch.empty, *shape, layout=layout, dtype=dtype, device="meta")
    return own.expand(*batch, rows, cols)


def _scale(job: Job, lines: int, recipe: str, own: tuple[int, ...]) -> torch.Tensor:
    """The scales of an operand with batch `own`; if they cover all of K, each group has some."""
    all_of_k = job.groups == "k" and not recipe.startswith("block")
    return empty_scale(recipe, lines, job.K, job.batch if all_of_k else own)


# Reading binaries


def render(code: Code, texts: Sequence[str] = ()) -> str:
    """The code as text: a table of its instructions and resources, then the requested `texts`."""
    lines = [
        f"{code.rung} on sm_{code.arch}: {code.problem}",
        code.config,
        "",
        *instruction_table(code.mix, code.variants),
        "",
        f"{'registers':<14}{code.registers:>7}  per thread, {code.warps} warps per program",
        f"{'spills':<14}{code.spills:>7}  bytes of stack per thread",
        f"{'shared':<14}{code.shared:>7}  bytes per program, "
        f"{'of' if code.fits else 'MORE THAN the'} {code.limit} that sm_{code.arch} has",
    ]
    for name in texts:
        lines += ["", getattr(code, name).strip()]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m tritemm asm`, for `main`."""
    parser.description = "Compile one rung for one problem and show its instructions, without GPU."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "example:\n"
        f"  python -m tritemm asm {RUNGS[-1].name} --sm 90 --dtype bf16 --problem 4096,4096,512,NT"
    )
    parser.add_argument("rung", metavar="RUNG", help=_list(rung.name for rung in RUNGS))
    for option, default, meaning in (
        ("--sm", "90", f"architecture: {_list(DEVICES)}"),
        ("--dtype", None, f"type of the operands: {_list(OPERANDS)} (default: the rung's own)"),
        ("--out-dtype", None, "type of the result (default: the operands'; int32 for int8)"),
        ("--accumulate", None, "type of the accumulator (default: fp32, fp64 or int32)"),
        ("--precision", "ieee", f"how fp32 is multiplied: {_list(PRECISIONS)}"),
        ("--problem", f"4096,4096,4096,{LAYOUT}", "M,N,K and how A and B are stored: "
         "N as written or T transposed"),
        ("--config", "0", "which of the rung's configs for this problem, from 0"),
        ("--activation", "", f"of the result: {_list(_ACTIVATIONS)} (default: none)"),
        ("--scales", "", f"recipes of the scales of A and B ({_list(map(short_name, NARROW))}): "
         f"{_list(RECIPES)}"),
    ):  # fmt: skip
        shown = f"{meaning} (default: {default})" if default else meaning
        metavar = {"--problem": "M,N,K,LAYOUT", "--config": "I", "--scales": "A,B"}.get(option)
        parser.add_argument(option, default=default, metavar=metavar, help=shown)
    add = parser.add_argument
    add("--bias", action="store_true", help="add a bias, of the result's type")
    add("--residual", action="store_true", help="add a residual, of the result's type")
    add("--symmetric", action="store_true", help="compute the triangle of a C that is symmetric")
    add("--fast", action="store_true", help="leave sums of fp8 to the tensor core")
    add("--ptx", action="store_true", help="also print the PTX")
    add("--sass", action="store_true", help="also print the SASS")
    add("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Print what the arguments select. 2: the arguments are invalid; 1: the compiler failed."""
    try:
        result = compile_problem(_job(args))
    except ValueError as error:
        return refuse("asm", error)
    if isinstance(result, Refusal):
        who = args.rung if result.by == "kernel" else f"compiling {args.rung}"
        status = refuse("asm", f"{who} for sm_{result.arch}: {result.reason}")
        return status if result.by == "kernel" else 1
    texts = [name for name in ("ptx", "sass") if getattr(args, name)]
    if args.json:
        values = dataclasses.asdict(result) | {"limit": result.limit}
        left_out = {"ptx", "sass"}.difference(texts)
        print(json.dumps({k: v for k, v in values.items() if k not in left_out}, indent=2))
    else:
        print(render(result, texts))
    return 0


def _job(args: argparse.Namespace) -> Job:
    parts = [part.strip() for part in args.problem.split(",")]
    if len(parts) not in (3, 4):
        raise ValueError(f"--problem is M,N,K or M,N,K,LAYOUT, not {args.problem!r}")
    M, N, K = (_integer("--problem", part) for part in parts[:3])
    layout = parts[3].upper() if len(parts) == 4 else LAYOUT
    return Job(
        args.rung, sm_of(args.sm), M, N, K, layout,
        args.dtype or "", args.out_dtype, args.accumulate, args.precision,
        config=_integer("--config", args.config), activation=args.activation, bias=args.bias,
        residual=args.residual, symmetric=args.symmetric, scales=args.scales,
        fast=args.fast,
    )  # fmt: skip


def sm_of(name: str | int) -> int:
    """The architecture "sm_90" or "90" as a number; ValueError, with the known ones, otherwise."""
    major, minor = named(name).capability
    return 10 * major + minor


def _integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{option} takes integers, not {text!r}") from None


def _one_of(what: str, value, known) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r} is unknown; one of {_list(filter(None, known))}")


def _dtype(name: str, what: str = "type", known=TRITON_DTYPE) -> torch.dtype:
    """The type called `name`: "bf16", "bfloat16" or "torch.bfloat16"."""
    dtype: Any = DTYPES.get(name) or getattr(torch, name.removeprefix("torch."), None)
    if dtype not in known:
        _one_of(what, name, [short_name(each) for each in known])
    return dtype


def _list(values) -> str:
    return ", ".join(str(value) for value in values)
