"""What each process of `test_distributed` does: checks of DTensor on a group of processes.

Run as a program, because a group wants processes of its own: it runs all checks on groups of the
sizes that it is given, and writes what failed. On the CPU all processes are forks of one, which
has imported what takes long.
"""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.torch import distributed_models, distributed_operators
from tests.torch.distributed_operators import epilogue
from tritemm.problem import INTERPRETED

CHECKS = {
    name.removeprefix("check_"): function
    for module in (distributed_operators, distributed_models)
    for name, function in vars(module).items()
}
#: Checks that multiply by tritemm's kernels wherever they run.
OWN = ("parallelize_module", "converted_models")


@contextlib.contextmanager
def torchs_products():
    """What each device multiplies, it multiplies by torch: the rules are the same."""

    def mm(a, b, kernel, precision, accumulate, out_dtype):
        dtype = torch.float32 if a.is_floating_point() else torch.int32
        return (a.to(dtype) @ b.to(dtype)).to(out_dtype)

    def gemm(a, b, bias, residual, activation, alpha, beta, symmetric, *options):
        assert not symmetric
        product = mm(a, b, *options)
        return epilogue(product, bias, residual, activation, alpha, beta).to(product.dtype)

    with warnings.catch_warnings(), torch.library._scoped_library("tritemm", "IMPL") as library:
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for operator in (mm, gemm):
            library.impl(operator.__name__, operator, "CPU", allow_override=True)
        yield


def rank(index: int, size: int, names: list[str], device: str, meeting: str, report: str) -> None:
    """Run checks as one process of a group, and write what became of them."""
    if device == "cuda":
        torch.cuda.set_device(index)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=index,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh = init_device_mesh(device, (size,))
    faults = {}
    for name in names:
        # The kernels are slow in the interpreter: what two processes do with them has to do.
        own = not INTERPRETED or (name in OWN and size == 2)
        torch.manual_seed(0)
        try:
            with contextlib.nullcontext() if own else torchs_products():
                CHECKS[name](mesh)
            faults[name] = None
        except Exception:
            faults[name] = traceback.format_exc()
    Path(report, f"{size}_{index}.json").write_text(json.dumps(faults))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", help="folder for <size>_<rank>.json: check -> traceback or null")
    parser.add_argument("groups", nargs="+", help="size:check,check,...")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    context = multiprocessing.get_context("fork" if args.device == "cpu" else "spawn")
    for group in args.groups:
        size, names = group.split(":")
        with tempfile.TemporaryDirectory() as folder:
            meeting = str(Path(folder, "meeting"))
            rest = int(size), names.split(","), args.device, meeting, args.report
            processes = [context.Process(target=rank, args=(i, *rest)) for i in range(int(size))]
            for process in processes:
                process.start()
            for process in processes:
                process.join()


if __name__ == "__main__":
    main()
