"""A small GPT learns by Muon, its orthogonalisation by tritemm: `python examples/muon.py`.

`torch.optim.Muon` has no hook for the function that makes its updates orthogonal, so that is
replaced by name. Four runs from the same first weights over the same bytes: torch's function, ours,
ours in the Gram form, and torch's with another seed, to show what is a small difference. `--tiny`
runs on a CPU too, in Triton's interpreter.
"""

import argparse
import sys

import torch
from torch.nn import functional as F
from torch.optim import _muon
from train_gpt import GPT, now, pages, table

import tritemm

TORCHS = _muon._zeropower_via_newtonschulz


def ours(grad, coefficients, steps, eps):
    return tritemm.newton_schulz(grad, steps, coefficients=coefficients, eps=eps)


def gram(grad, coefficients, steps, eps):
    return tritemm.newton_schulz(grad, steps, coefficients=coefficients, eps=eps, gram=True)


def train(args, text, orthogonalise, seed=0):
    """The losses of a run, one per step, and its steps per second without the first."""
    torch.manual_seed(seed)
    model = GPT(args.width, args.heads, args.layers, args.context).to(args.device)
    hidden = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is h for h in hidden)]
    optimizers = [
        torch.optim.Muon(hidden, lr=args.rate, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=args.rate),
    ]
    random = torch.Generator().manual_seed(seed)
    losses = []
    _muon._zeropower_via_newtonschulz = orthogonalise
    try:
        for step in range(args.steps + 1):
            if step == 1:  # the first one compiled
                begin = now(args.device)
            at = torch.randint(len(text) - args.context, (args.batch,), generator=random)
            ids = torch.stack([text[i : i + args.context + 1] for i in at.tolist()])
            ids = ids.to(args.device).long()
            with torch.autocast(args.device, torch.bfloat16, enabled=not args.tiny):
                logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    finally:
        _muon._zeropower_via_newtonschulz = TORCHS
    seconds = now(args.device) - begin
    return torch.stack(losses).tolist(), args.steps * args.batch * args.context / seconds


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="a few steps of a tiny model")
    args = parser.parse_args(argv)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"width": 2048, "heads": 16, "layers": 4, "context": 512, "batch": 4, "rate": 1e-3}
    if args.tiny:
        sizes = {"width": 16, "heads": 2, "layers": 1, "context": 16, "batch": 1, "rate": 3e-3}
        args.steps = min(args.steps, 3)
    vars(args).update(sizes)
    return args


def main(argv=None):
    args = arguments(argv)
    if args.device == "cpu" and not args.tiny:
        print("examples/muon.py needs a CUDA device, or --tiny", file=sys.stderr)
        return 2
    text = pages()
    runs = {
        "torch": train(args, text, TORCHS),
        "tritemm": train(args, text, ours),
        "the Gram form": train(args, text, gram),
        "another seed": train(args, text, TORCHS, seed=1),
    }
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
