"""A small GPT learns with Muon, whose orthogonalisation uses tritemm: `python examples/muon.py`.

`torch.optim.Muon` has no hook for the function that makes its updates orthogonal, so the example
replaces it by name. There are four runs over the same bytes: torch's function, ours, and ours in
the Gram form, from the same initial weights; and torch's with another seed, to show how large a
small difference is. `--tiny` also runs on a CPU, in Triton's interpreter. `--time 4096x11008`
trains nothing: it times the three functions on one matrix in bf16, in turns, and says how far their
results are from the same steps in fp64.
"""

import argparse
import statistics
import sys

import torch
from torch.optim import _muon
from train_gpt import pages, table, train

import tritemm

TORCHS = _muon._zeropower_via_newtonschulz


def ours(grad, coefficients, steps, eps):
    return tritemm.newton_schulz(grad, steps, coefficients=coefficients, eps=eps)


def gram(grad, coefficients, steps, eps):
    return tritemm.newton_schulz(grad, steps, coefficients=coefficients, eps=eps, gram=True)


def optimizers(model, rate):
    """Muon for the matrices of the blocks, AdamW for all else."""
    hidden = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is h for h in hidden)]
    muon = torch.optim.Muon(hidden, lr=rate, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=rate)]


def run(args, text, orthogonalise, seed=0):
    """The losses of a run and its tokens per second, with this function instead of torch's."""
    _muon._zeropower_via_newtonschulz = orthogonalise
    try:
        return train(args, text, False, seed, optimizers)
    finally:
        _muon._zeropower_via_newtonschulz = TORCHS


def timed(rows, columns, rounds=20):
    """A line for each function: milliseconds, times torch's speed, and the relative error."""
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    muon = torch.optim.Muon([torch.nn.Parameter(x)]).defaults
    a, b, c = muon["ns_coefficients"]
    options = (a, b, c), muon["ns_steps"], muon["eps"]
    exact = x.double() / x.double().norm()
    for _ in range(muon["ns_steps"]):
        r = exact @ exact.mT
        exact = a * exact + (b * r + c * r @ r) @ exact
    functions = {"torch": TORCHS, "tritemm": ours, "the Gram form": gram}
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function(x, *options)
            stop.record()
            stop.synchronize()
            times[name].append(start.elapsed_time(stop))
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name, function in functions.items():
        error = (function(x, *options).double() - exact).norm() / exact.norm()
        speed = middle["torch"] / middle[name]
        yield f"{name:14} {middle[name]:7.3f} ms  {speed:.2f}x torch  error {error:.4f}"


def size(text):
    """Rows and columns, of 4096x11008."""
    rows, columns = map(int, text.split("x"))
    return rows, columns


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="a few steps of a tiny model")
    text = "time the functions on such a matrix alone; needs a GPU"
    parser.add_argument("--time", type=size, metavar="MxN", help=text)
    args = parser.parse_args(argv)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"width": 2048, "heads": 16, "layers": 4, "context": 512, "batch": 4, "rate": 1e-3}
    if args.tiny:
        sizes = {"width": 16, "heads": 2, "layers": 1, "context": 16, "batch": 1, "rate": 3e-3}
        args.steps = min(args.steps, 3)
    dtype = "float32" if args.tiny else "bfloat16"
    vars(args).update(sizes, dtype=dtype, compile=False)
    return args


def main(argv=None):
    args = arguments(argv)
    if args.device == "cpu" and (args.time or not args.tiny):
        instead = "" if args.time else ", or --tiny"
        print(f"examples/muon.py needs a CUDA device{instead}", file=sys.stderr)
        return 2
    if args.time:
        rows, columns = args.time
        print(f"{rows} x {columns}, bf16", *timed(rows, columns), sep="\n")
        return 0
    text = pages()
    runs = {
        "torch": run(args, text, TORCHS),
        "tritemm": run(args, text, ours),
        "the Gram form": run(args, text, gram),
        "another seed": run(args, text, TORCHS, seed=1),
    }
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
