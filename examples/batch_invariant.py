"""The same prompt alone and among others, to the bit: `python examples/batch_invariant.py`.

A library that chooses its kernel by the number of rows may add up a row's terms in another order if
there are more rows, so a prompt's logits depend on the other prompts in the batch. This transformer
takes its products from tritemm with `batch_invariant=True`, or from torch. Its sums over a row, in
the norms and in softmax, are products with ones, and everything else acts on each element by
itself. So the comparison is of the products. The weights are random. `--tiny` also runs on a CPU.
"""

import argparse
import functools
import sys

import torch
from torch import nn
from torch.nn import functional as F

import tritemm


class Layer(nn.Module):
    def __init__(self, width, heads, matmul):
        super().__init__()
        self.heads, self.matmul = heads, matmul
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.out(self.attention(self.norm(x)))
        return x + self.down(F.gelu(self.up(self.norm(x))))

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = self.matmul(q, k.mT).float() * q.shape[-1] ** -0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / self.sum(weights)
        seen = self.matmul(weights.to(x.dtype), v)
        return seen.transpose(1, 2).reshape(batch, length, width)

    def norm(self, x):
        mean = self.sum(x.float().square()) / x.shape[-1]
        return (x.float() * (mean + 1e-6).rsqrt()).to(x.dtype)

    def sum(self, x):
        """Over each row, [..., N] -> [..., 1]."""
        return self.matmul(x, x.new_ones(x.shape[-1], 1))


def model(args, matmul):
    """The same weights at every call."""
    torch.manual_seed(0)
    layers = [Layer(args.width, args.heads, matmul) for _ in range(args.layers)]
    ends = nn.Embedding(args.vocab, args.width), nn.Linear(args.width, args.vocab, bias=False)
    return nn.Sequential(ends[0], *layers, ends[1]).to(args.device, args.dtype)


def compare(model, args):
    """For each batch size: how many of the first prompt's logits differ from its own alone."""
    prompts = torch.randint(args.vocab, (max(args.batches), args.length), device=args.device)
    alone = model(prompts[:1])[0]
    for batch in args.batches:
        among = model(prompts[:batch])[0]
        apart = (among.double() - alone.double()).abs()
        yield batch, int((among != alone).sum()), alone.numel(), apart.max().item()


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="a tiny model")
    args = parser.parse_args(argv)
    args.dtype = getattr(torch, args.dtype)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"width": 1024, "heads": 16, "layers": 4, "vocab": 8192, "length": 37}
    sizes["batches"] = 2, 3, 8, 17, 64
    if args.tiny:
        sizes = {"width": 32, "heads": 2, "layers": 1, "vocab": 48, "length": 5, "batches": (2, 9)}
    vars(args).update(sizes)
    return args


@torch.no_grad()
def main(argv=None):
    args = arguments(argv)
    if args.device == "cpu" and not args.tiny:
        print("examples/batch_invariant.py needs a CUDA device, or --tiny", file=sys.stderr)
        return 2
    ours = model(args, functools.partial(tritemm.matmul, batch_invariant=True))
    tritemm.convert(ours, batch_invariant=True)
    wrong = 0
    for name, made in (("tritemm", ours), ("torch", model(args, torch.matmul))):
        for batch, differ, count, most in compare(made, args):
            said = f"{differ} of {count} differ, by up to {most:.2g}" if differ else "equal"
            print(f"{name:8} the first of {batch:3} prompts, bits of its logits: {said}")
            wrong += differ if made is ours else 0
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
