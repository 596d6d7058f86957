"""A converted model as one file, without its Python code: `python examples/aot_inductor.py`.

torch.export takes a model apart into operators, and AOTInductor compiles them to a package. The
products in it are calls of `tritemm::gemm`, which is written in Python. So a Python process that
has imported tritemm runs the package; a C++ program doesn't, and says that it lacks the operator.
The package is written to `--package`, loaded again, and compared with the model. `--tiny` runs on a
CPU too; compiling takes a minute there.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import tritemm


class GatedMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj = nn.Linear(width, 4 * width, bias=False)
        self.up_proj = nn.Linear(width, 4 * width, bias=False)
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def exported(model, x):
    """The program of a converted model, for any number of rows."""
    # Each weight in a storage of its own, as a package keeps its constants.
    tritemm.convert(model, fuse=False)
    return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def products(program):
    """How many nodes of a program are tritemm's."""
    return sum(str(node.target).startswith("tritemm.") for node in program.graph.nodes)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", type=Path, help="a .pt2 to write; without it, a temporary one")
    parser.add_argument("--tiny", action="store_true", help="a tiny model")
    args = parser.parse_args(argv)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.width, args.layers, args.rows = (16, 1, 8) if args.tiny else (2048, 4, 512)
    args.dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    return args


@torch.no_grad()
def main(argv=None):
    args = arguments(argv)
    if args.device == "cpu" and not args.tiny:
        print("examples/aot_inductor.py needs a CUDA device, or --tiny", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    layers = [GatedMLP(args.width) for _ in range(args.layers)]
    model = nn.Sequential(*layers).to(args.device, args.dtype).eval()
    x = torch.randn(args.rows, args.width, device=args.device, dtype=args.dtype)
    program = exported(model, x)
    print(f"{products(program)} products by tritemm")
    with tempfile.TemporaryDirectory() as folder:
        package, begin = args.package or Path(folder) / "model.pt2", time.perf_counter()
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
        print(f"compiled in {time.perf_counter() - begin:.0f} s")
        loaded = torch._inductor.aoti_load_package(str(package))
    wrong = 0
    for rows in (args.rows, args.rows // 2 + 1):
        want = model(x[:rows])
        error = ((loaded(x[:rows]) - want).norm() / want.norm()).item()
        print(f"{rows} rows: {error:.1e} from the model itself, relatively")
        wrong += not error < 1e-2
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
