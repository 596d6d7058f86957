"""`python -m cuda_reference`: list, build, asm, run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from typing import Any

from tritemm.compile.sass import instruction_table
from tritemm.machine.command import status_of
from tritemm.problem import short_name
from tritemm.spec import find

from . import cubin, loader, source, toolkit
from .kernel import ACCUMULATORS, TYPES
from .rungs import RUNGS

EXAMPLES = """examples:
  python -m cuda_reference list
  python -m cuda_reference build --sm 80 mma_base
  python -m cuda_reference asm wgmma_tma
  python -m cuda_reference run mma_async_stage3 --size 4096,4096,4096 --accumulate fp16
  python -m cuda_reference run types/mma_f16 --entry mma.m16n8k16.row.col.f32.f16.f16.f32"""


def main(argv: list[str] | None = None) -> int:
    """0: done; 1: something failed to compile or multiplied wrongly; 2: the request is invalid."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, toolkit.Unavailable) as error:
        print(f"cuda_reference {args.command}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"cuda_reference {args.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    layout: dict[str, Any] = {
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "epilog": EXAMPLES,
    }
    parser = argparse.ArgumentParser(
        prog="python -m cuda_reference",
        description="The hand-written CUDA kernels that the Triton rungs mirror.",
        **layout,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=help, description=f"{help[0].upper()}{help[1:]}.", **layout
        )
        added.set_defaults(run=run)
        return added

    listing = command("list", _list, "list the ladder, in reading order, and the tables of types")
    listing.add_argument("--json", action="store_true", help="print JSON, for programs")

    build = command("build", _build, "compile for this GPU; without one, compile to cubins")
    build.add_argument(
        "names", nargs="*", metavar="NAME", help="a source, as listed; default: every source"
    )
    build.add_argument(
        "--sm", metavar="80|90a", help="compile to machine code for this architecture"
    )
    build.add_argument(
        "--jobs", type=int, metavar="N", help="compilations at a time (default: one per core)"
    )

    asm = command("asm", _asm, "show a source's instructions and resources, with no GPU")
    asm.add_argument("name", metavar="NAME", help="a source, as listed")
    asm.add_argument("--sm", metavar="80|90a", help="architecture (default: the source's newest)")
    text = "only functions whose name contains TEXT"
    asm.add_argument("--function", default="", metavar="TEXT", help=text)
    asm.add_argument("--sass", action="store_true", help="also print the SASS")
    asm.add_argument("--ptx", action="store_true", help="also print the PTX")
    asm.add_argument("--json", action="store_true", help="print JSON instead of tables")

    run = command("run", _run, "multiply random matrices, check every element and time the kernel")
    run.add_argument(
        "name", metavar="NAME", help="a rung, as listed; types/NAME shows which lane holds what"
    )
    run.add_argument("--entry", metavar="ENTRY", help="entry of types/NAME (default: its first)")
    run.add_argument(
        "--filled", action="store_true", help="fill A and B with 0, 1, 2, ... and print D"
    )
    run.add_argument(
        "--size", default="1024,1024,1024", metavar="M,N,K", help="sizes (default: %(default)s)"
    )
    types, sums = (", ".join(map(short_name, known)) for known in (TYPES, ACCUMULATORS))
    run.add_argument("--dtype", help=f"operands: {types} (default: fp16 if possible)")
    run.add_argument("--accumulate", default="fp32", help=f"sums: {sums} (default: %(default)s)")
    run.add_argument("--layout", metavar="NT|NN", help="how A and B are stored (default: NT)")
    run.add_argument(
        "--config", type=int, default=0, metavar="I", help="number of the config, from 0"
    )
    return parser


def _list(args: argparse.Namespace) -> int:
    rows = [{"number": k.number, "name": k.name, "title": k.title, **k.header} for k in RUNGS]
    for name in source.names():
        if "/" in name:
            title = source.title(name)
            rows.append({"number": None, "name": name, "title": title, **source.header(name)})
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        number = f"{row['number']:02}" if row["number"] else "  "
        print(f"{number} {row['name']:<{width}}  {row['title']}")
    if reason := loader.unavailable():
        print(f"\nThey don't run here: {reason}.", file=sys.stderr)
    return 0


def _build(args: argparse.Namespace) -> int:
    names = args.names or source.names()
    for name in names:
        source.path_of(name)
    no_gpu = loader.unavailable()
    if args.sm is None and no_gpu is None:
        failed = loader.build(names, args.jobs)
        made = f"libraries for sm_{loader.architecture()}"
    else:
        archs = [cubin.architecture(args.sm)] if args.sm else ["80", "90a"]
        toolkit.nvcc()  # the reason once, not for every source
        if args.sm is None:
            print(f"{no_gpu}; compiling to cubins for {_sms(archs)}", file=sys.stderr)
        failed = cubin.compile_all(names, archs, args.jobs)
        made = f"cubins for {_sms(archs)}"
    for message in failed.values():
        print(message, file=sys.stderr)
    if not failed:
        print(f"{made} are in {toolkit.cache_folder()}")
    return 1 if failed else 0


def _sms(archs: list[str]) -> str:
    return " and ".join(f"sm_{arch}" for arch in archs)


def _asm(args: argparse.Namespace) -> int:
    sm = args.sm or source.architectures(args.name)[-1]
    code = cubin.compile_cubin(args.name, sm)
    ptx = cubin.compile_ptx(args.name, sm) if args.ptx else ""
    functions = [f for f in code.functions if args.function in f.name]
    if not functions:
        known = ", ".join(function.name for function in code.functions)
        raise ValueError(f"no function of {code.name} has {args.function!r} in its name: {known}")
    if args.json:
        values = {"name": code.name, "arch": code.arch, "warnings": code.warnings}
        values["functions"] = [dataclasses.asdict(function) for function in functions]
        if args.sass:
            values["sass"] = code.sass
        if args.ptx:
            values["ptx"] = ptx
        print(json.dumps(values, indent=2))
        return 0
    print(f"{code.name} on sm_{code.arch}")
    for function in functions:
        print(_render(function))
    for text in filter(None, (code.warnings, ptx, code.sass if args.sass else "")):
        print(f"\n{text.strip()}")
    return 0


def _render(function: cubin.Function) -> str:
    lines = [
        "",
        function.name,
        *instruction_table(function.mix, function.variants),
        f"{'registers':<14}{function.registers:>7}  per thread",
        f"{'stack':<14}{function.stack:>7}  bytes per thread",
        f"{'shared':<14}{function.shared:>7}  bytes per block, beside what the launch asks for",
    ]
    return "\n".join(lines)


def _run(args: argparse.Namespace) -> int:
    if args.filled:
        return _run_filled(args)
    return _run_entry(args) if "/" in args.name else _run_rung(args)


def _run_filled(args: argparse.Namespace) -> int:
    from . import filled

    if args.name != filled.RUNG:
        raise ValueError(f"--filled is the example of {filled.RUNG}, not of {args.name}")
    loader.architecture()  # the reason, where there is no GPU
    d, wrong = filled.run()
    print(f"{filled.RUNG}: A[64 x 16] and B[16 x 8] are 0, 1, 2, ... by rows, in bf16; D is")
    print(filled.table(d))
    print("; ".join(f"{name} is wrong" for name in wrong) or "ok: exact, with B in both majors")
    return 1 if wrong else 0


def _run_entry(args: argparse.Namespace) -> int:
    """Prints who holds what in any case; the instruction runs where there is a GPU for it."""
    from .types import show

    source.path_of(args.name)
    entry = show.entry_of(args.name, args.entry)
    print(show.describe(entry), flush=True)
    wrong = show.check(entry, args.name)
    print(f"\n{wrong or 'ok: D is what it should be, in every element'}")
    return 1 if wrong else 0


def _run_rung(args: argparse.Namespace) -> int:
    import torch

    from tritemm import budget, plan
    from tritemm.problem import Problem
    from tritemm.runtime.clock import elapsed

    from . import exact

    kernel = find(args.name, RUNGS)
    dtype = _type(args.dtype or "fp16", TYPES)
    accumulate = _type(args.accumulate, ACCUMULATORS)
    M, N, K = _size(args.size)
    layout = args.layout or kernel.readable.layouts[0]
    if layout not in ("NT", "NN"):
        raise ValueError(f"--layout is NT or NN, not {layout!r}")
    loader.architecture()  # the reason, where there is no GPU
    a = torch.randn(M, K, device="cuda").to(dtype)
    b = torch.randn(N, K, device="cuda").to(dtype).mT
    scales, options = [], {}
    if kernel.readable.scaled and not args.dtype:
        a, b, *scales = exact.operands(M, N, K)
        options = {"scales": (*scales, True)}
    if layout == "NN":
        b = b.contiguous()
    output = (*kernel.readable.outputs, dtype)[0]
    c = torch.full((M, N), torch.nan, dtype=output, device="cuda")
    problem = Problem.of(a, b, c, accumulate=accumulate, **options)
    if reason := kernel.why_not(problem):
        raise ValueError(f"{kernel.name} cannot run this problem: {reason}")
    configs = kernel.configs(problem)
    if not 0 <= args.config < len(configs):
        raise ValueError(f"{kernel.name} has {len(configs)} configs, from 0; no {args.config}")
    config = configs[args.config]
    plan.run(kernel, problem, config, a, b, c, *scales)
    dense = a, b
    if scales:
        dense = budget.dequantized(a, scales[0]), budget.dequantized(b.mT, scales[1]).mT
    verdict = budget.check(c, *dense, accumulate=accumulate)
    print(f"{kernel.name}: {kernel.title}\n{problem}, sums in {short_name(accumulate)}\n{config}")
    print(verdict)
    if not verdict.ok:
        return 1

    def once() -> None:
        plan.run(kernel, problem, config, a, b, c, *scales)

    # One launch at a time, to give an idea; `python -m perf` is what measures.
    seconds = statistics.median(elapsed(once) for _ in range(20))
    print(f"{1e6 * seconds:.1f} us, {problem.flops / seconds / 1e12:.4g} TFLOP/s, warm")
    return 0


def _type(name: str, known):
    for dtype in known:
        if name in (short_name(dtype), str(dtype).removeprefix("torch.")):
            return dtype
    raise ValueError(f"type {name!r} is unknown; one of {', '.join(map(short_name, known))}")


def _size(text: str) -> tuple[int, int, int]:
    try:
        M, N, K = map(int, text.split(","))
    except ValueError:
        raise ValueError(f"--size is M,N,K, not {text!r}") from None
    if min(M, N, K) < 1:
        raise ValueError(f"M, N and K are {M}, {N} and {K}; at least 1 each")
    return M, N, K


if __name__ == "__main__":
    sys.exit(status_of(main))
