"""A small GPT learns this repository's own pages: `python examples/train_gpt.py`.

There are three runs: torch; tritemm, from the same initial weights over the same bytes; and torch
with another seed. Another way to multiply should change little compared with another seed, and
the table shows both. With `--dtype fp8`, tritemm's layers multiply in fp8, and torch runs a third
seed. `--tiny` also runs on a CPU, in Triton's interpreter.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import tritemm

ROOT = Path(__file__).resolve().parent.parent


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = MLP(width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        seen = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """A model of bytes: the logits of each next one."""

    def __init__(self, width, heads, layers, context):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids):
        x = self.bytes(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def pages():
    """The bytes of the repository's documentation."""
    texts = [path.read_bytes() for path in sorted(ROOT.glob("docs/**/*.md"))]
    return torch.frombuffer(bytearray(b"\n".join(texts)), dtype=torch.uint8)


def adamw(model, rate):
    return [torch.optim.AdamW(model.parameters(), lr=rate)]


def train(args, text, convert, seed, optimizers=adamw):
    """The losses of a run, one per step, and its tokens per second without the first step."""
    torch.manual_seed(seed)
    model = GPT(args.width, args.heads, args.layers, args.context).to(args.device)
    if convert:
        tritemm.convert(model, dtype="fp8" if args.dtype == "fp8" else None)
    torch._dynamo.reset()
    run = torch.compile(model) if args.compile else model
    steppers = optimizers(model, args.rate)
    random = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(args.steps + 1):
        if step == 1:  # the first one compiled
            begin = now(args.device)
        at = torch.randint(len(text) - args.context, (args.batch,), generator=random)
        ids = torch.stack([text[i : i + args.context + 1] for i in at.tolist()])
        ids = ids.to(args.device).long()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype != "float32"):
            logits = run(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for optimizer in steppers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    seconds = now(args.device) - begin
    speed = args.steps * args.batch * args.context / seconds
    return torch.stack(losses).tolist(), speed


def now(device):
    """The time in seconds, once the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def table(runs):
    """About twelve lines of losses, their means over the last tenth of the steps, and each run's
    distance from the first."""
    first, *others = (losses for losses, _ in runs.values())
    lines = ["step".rjust(6) + "".join(name.rjust(16) for name in runs)]
    count = len(first)
    for step in sorted({round(i * (count - 1) / 11) for i in range(12)}):
        values = "".join(f"{losses[step]:16.4f}" for losses, _ in runs.values())
        lines.append(f"{step:6}{values}")
    last = [losses[-max(1, count // 10) :] for losses, _ in runs.values()]
    lines.append("mean".rjust(6) + "".join(f"{sum(each) / len(each):16.4f}" for each in last))
    lines.append("tok/s".rjust(6) + "".join(f"{speed:16,.0f}" for _, speed in runs.values()))
    for name, losses in zip(list(runs)[1:], others, strict=True):
        apart = [abs(x - y) for x, y in zip(losses, first, strict=True)]
        mean = sum(apart) / count
        lines.append(f"{name} is {mean:.2g} from torch on average, at most {max(apart):.2g}")
    return "\n".join(lines)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "fp8"], default="bfloat16")
    parser.add_argument("--compile", action="store_true", help="under torch.compile")
    parser.add_argument("--tiny", action="store_true", help="a few steps of a tiny model")
    args = parser.parse_args(argv)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"width": 1024, "heads": 16, "layers": 8, "context": 512, "batch": 16, "rate": 3e-4}
    if args.tiny:
        sizes = {"width": 16, "heads": 2, "layers": 1, "context": 16, "batch": 1, "rate": 3e-3}
        args.steps = min(args.steps, 3)
    vars(args).update(sizes)
    return args


def main(argv=None):
    args = arguments(argv)
    if args.device == "cpu" and not args.tiny:
        print("examples/train_gpt.py needs a CUDA device, or --tiny", file=sys.stderr)
        return 2
    text = pages()
    runs = {
        "torch": train(args, text, convert=False, seed=0),
        "tritemm": train(args, text, convert=True, seed=0),
        "another seed": train(args, text, convert=False, seed=1),
    }
    if args.dtype == "fp8":
        runs["third seed"] = train(args, text, convert=False, seed=2)
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
