#!/usr/bin/env python
"""Run compute-sanitizer on every CUDA kernel, on small ragged problems; needs a GPU.

    python tools/sanitize.py [--tool memcheck] [NAME ...]

Prints a line for each kernel and tool, and the reports. 1: something was found; 2: it can't run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's path begins with its own folder

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Kernels that share a process, because starting one costs more than most kernels do.
SHARE = 5
#: M, N, K of the rungs: tiles of 256 and of 128 and their remainders; steps of 64 and a remainder.
SIZE = (300, 270, 197)
#: N of the wgmma entries that run; the others differ in nothing else.
WGMMA_N = (8, 24, 256)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: every .cu")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="default: all of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--limit", type=int, default=170, help="seconds for a process")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        run_here(args.names)
        return 0

    from cuda_reference import loader, source, toolkit
    from cuda_reference.types.table import held_by

    names = args.names or [n for n in source.names() if "/" not in n or held_by(n)]
    try:
        for name in names:
            source.path_of(name)
        names = [name for name in names if loader.runs_on(name, loader.architecture())]
        sanitizer = find_sanitizer(toolkit.nvcc().root)
    except (ValueError, toolkit.Unavailable) as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 2
    failed = loader.build(names, args.jobs)
    for message in failed.values():
        print(message, file=sys.stderr)
    if failed:
        return 1
    groups = [names[i : i + SHARE] for i in range(0, len(names), SHARE)]
    work = list(itertools.product(args.tool or TOOLS, groups))
    with ThreadPoolExecutor(args.jobs) as pool:
        clean = list(pool.map(lambda job: sanitize(sanitizer, *job, args.limit), work))
    return 0 if all(clean) else 1


def find_sanitizer(toolkit_root: Path) -> str:
    from cuda_reference.toolkit import Unavailable

    places = [shutil.which("compute-sanitizer"), toolkit_root / "bin" / "compute-sanitizer"]
    places += ["/usr/local/cuda/bin/compute-sanitizer"]
    for place in places:
        if place and os.access(place, os.X_OK):
            return str(place)
    raise Unavailable("compute-sanitizer was not found; it is part of the CUDA toolkit")


def sanitize(sanitizer: str, tool: str, names: list[str], limit: int) -> bool:
    """Run the kernels together; if anything is found, one by one, to tell whose it is."""
    status, report = run_under(sanitizer, tool, names, limit)
    clean = status == 0 and all(f"\nran {name}\n" in f"\n{report}" for name in names)
    if clean or len(names) == 1:
        for name in names:
            print(f"{tool:<10} {name:<24} {'clean' if clean else 'FOUND'}", flush=True)
        if not clean:
            print(shortened(report, status), flush=True)
        return clean
    alone = [sanitize(sanitizer, tool, [name], limit) for name in names]
    return all(alone)


def run_under(sanitizer: str, tool: str, names: list[str], limit: int) -> tuple[int, str]:
    """The exit status and what was printed; a status of -1 means the time was up."""
    from tools.sessions import session

    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
    command += [sys.executable, __file__, "--inside", *names]
    # Every tensor has an allocation of its own, so that its bounds and its first write are seen.
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with (
        contextlib.suppress(subprocess.TimeoutExpired),
        session(command, cwd=ROOT, env=env, **both) as process,
    ):
        report, _ = process.communicate(timeout=limit)
        return process.returncode, report
    return -1, process.communicate()[0]


def shortened(report: str, status: int) -> str:
    lines = [f"    {line}" for line in report.splitlines() if line.strip(" =")]
    what = "the time was up" if status == -1 else f"status {status}"
    return "\n".join([*lines[:40], f"    ({what}, {len(lines)} lines)"])


# Inside the sanitizer


def run_here(names: list[str]) -> None:
    """Run each kernel on problems of its own and say so."""
    import torch

    from cuda_reference.rungs import RUNGS

    rungs = {kernel.name: kernel for kernel in RUNGS}
    torch.manual_seed(0)
    for name in names:
        if name in rungs:
            run_rung(rungs[name])
        else:
            run_table(name)
        torch.cuda.synchronize()
        print(f"ran {name}", flush=True)


def run_rung(kernel) -> None:
    """In each type, accumulator, layout and config. Data come and go by copies alone: torch's own
    kernels would be slow to load and to check."""
    import torch

    from cuda_reference import exact
    from tritemm import budget, plan
    from tritemm.problem import Problem

    M, N, K = SIZE
    limits = kernel.readable
    for dtype, accumulate, layout in itertools.product(
        limits.types, limits.accumulators, limits.layouts
    ):
        if accumulate == torch.float16 and dtype != torch.float16:
            continue
        host_a = padded(M, K, dtype)
        host_b = padded(N, K, dtype).mT if layout == "NT" else padded(K, N, dtype)
        dense, scales, options = (host_a, host_b), [], {}
        if limits.scaled:
            host_a, host_b, *scales = exact.operands(M, N, K, "cpu")
            dense = (
                budget.dequantized(host_a, scales[0]),
                budget.dequantized(host_b.mT, scales[1]).mT,
            )
            options = {"scales": (*scales, True)}
        a, b, *scales = map(on_gpu, (host_a, host_b, *scales))
        output = (*limits.outputs, dtype)[0]
        c = torch.full((M, N + 1), torch.nan, dtype=output).cuda()[:, :N]
        problem = Problem.of(a, b, c, accumulate=accumulate, **options)
        assert kernel.why_not(problem) is None, kernel.why_not(problem)
        for config in kernel.configs(problem):
            plan.run(kernel, problem, config, a, b, c, *scales)
            verdict = budget.check(on_cpu(c), *dense, accumulate=accumulate)
            assert verdict.ok, f"{kernel.name}, {config}: {verdict}"


def padded(rows: int, cols: int, dtype):
    """Random [rows, cols] on the CPU in rows that are a multiple of 16 bytes, NaN between them."""
    import torch

    vector = 16 // dtype.itemsize
    storage = torch.full((rows, -(-cols // vector) * vector + vector), torch.nan, dtype=dtype)
    view = storage[:, :cols]
    view.copy_(torch.randn(rows, cols))
    return view


def on_gpu(tensor):
    """The same strides over a copy of the whole storage."""
    import torch

    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).cuda()
    return whole.as_strided(tensor.shape, tensor.stride())


def on_cpu(tensor):
    import torch

    whole = torch.empty(0, dtype=tensor.dtype, device="cuda").set_(tensor.untyped_storage()).cpu()
    return whole.as_strided(tensor.shape, tensor.stride())


def run_table(name: str) -> None:
    """Every instruction of a file of types/, of wgmma those with few of the many N."""
    from cuda_reference.types import multiply

    for entry in entries_of(name):
        m, n, k = entry.shape
        a, b, c = values(m, k, entry.a), values(k, n, entry.b), values(m, n, entry.c)
        multiply(entry, a, b, c, source=name)


def entries_of(name: str) -> Iterator:
    from cuda_reference.types.table import held_by

    for entry in held_by(name):
        if entry.instruction != "wgmma" or entry.shape[1] in WGMMA_N:
            yield entry


def values(rows: int, cols: int, type_: str):
    """Small numbers that every type holds."""
    import torch

    from cuda_reference.types.table import DTYPES

    return torch.randint(0, 2, (rows, cols)).to(DTYPES[type_]).cuda()


if __name__ == "__main__":
    sys.exit(main())
