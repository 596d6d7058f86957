"""`python -m perf repeat`: is a product the same bits every time, and its rows for every M?

Other work runs beside each product, on a second stream, so that programs are scheduled differently
from one repetition to the next.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch

import tritemm
from tritemm import dispatch

from .. import cli
from ..case import Case
from ..competitors import problem_of
from ..operands import operands, poison
from ..problems import random_problems, read_suite
from ..session import heading_line, record

#: The most arithmetic of a problem that is repeated a thousand times: 0.5 ms of an H200.
FLOPS = 2**38
#: Repetitions between two waits for the device: a queue that is never full.
TOGETHER = 50
#: N, K of layers of language models: attention output and gate of 4096 wide ones, a wide one's
#: down-projection, a narrow one, and one whose rows are no multiple of 16 bytes; narrow ones with a
#: long K, which is cut, one of them with a K that no step divides.
LAYERS = (
    (4096, 4096), (14336, 4096), (8192, 28672), (1536, 2048), (5003, 2051),
    (2112, 7168), (1280, 8192), (256, 7168), (520, 5000), (64, 16384),
)  # fmt: skip
#: Of layers: the largest M, the one that the others are compared with.
ROWS = 512


EXAMPLES = """
python -m perf repeat
python -m perf repeat --repetitions 100 --problems 5
python -m perf repeat --repetitions 1000 --problems 20 --out repeat.jsonl
"""


def register(commands) -> None:
    described = "Repeat products and compare their bits; compare rows over every M."
    command = cli.add_command(commands, "repeat", run, described, EXAMPLES)
    add = command.add_argument
    for option, default, text in (
        ("--repetitions", 1000, "of each problem"),
        ("--problems", 20, "that are repeated: one of each kind of choice first"),
        ("--rows", ROWS, "the largest M of the layers"),
    ):
        count = cli.argument(cli.positive)
        add(option, type=count, default=default, help=f"{text}; default: {default}")
    add("--seed", type=int, default=0, help="of the random problems and of the data")
    add("--out", type=Path, help="JSON lines are added to this file")


def run(args: argparse.Namespace) -> int:
    """0; 1 if any bit differs; 2: it can't begin."""
    if reason := cli.unable("repeat"):
        return cli.refuse(reason)
    torch.manual_seed(args.seed)
    disturb = Disturbance(args.seed)
    cases = problems(args.problems, args.seed)
    repeats = (one(case, args.repetitions, disturb) for case in cases)
    lines = itertools.chain(repeats, (layer(N, K, args.rows) for N, K in LAYERS))
    told = [(json.dumps(line), report(line)) for line in lines]
    record(args.out, [heading_line(args), *(line for line, _ in told)])
    return int(any(differs for _, differs in told))


def problems(count: int, seed: int, kind: Callable[[Case], Hashable] | None = None) -> list[Case]:
    """Cases of the suite and random ones: one of each kind of choice, then more of each in turn."""
    kind = kind or kind_of
    known: dict[Hashable, list[Case]] = {}
    suite = [p.case for p in read_suite() if p.case.dtype in ("bf16", "fp16")]
    for case in (*suite, *(p.case for p in random_problems(200, seed))):
        if case.flops <= FLOPS:
            known.setdefault(kind(case), []).append(case)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*known.values()))
    return [case for case in turns if case][:count]


def kind_of(case: Case) -> str:
    """What the dispatcher chooses for the case: `stream_k`, `tma, swapped, a packed`."""
    choice = dispatch.choose(problem_of(case))
    config = choice.config
    packed = f"{config.PACK} packed" if config.PACK else ""
    how = ("K split" * (config.SPLIT_K > 1), "swapped" * config.SWAP, packed)
    return ", ".join(filter(None, (choice.kernel.name, *how)))


def bits(c: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN is equal to itself there, and -0 is not 0."""
    return c.view(getattr(torch, f"int{8 * c.element_size()}"))


def repeated(case: Case, repetitions: int, disturb: Callable[[], None], device="cuda") -> int:
    """How many results of `tritemm.matmul` differ from the first."""
    a, b, c = operands(case, device)
    multiply = lambda: tritemm.matmul(a, b, out=poison(c), out_dtype=c.dtype)  # noqa: E731
    multiply()
    first = bits(c).clone()
    differ = torch.zeros((), dtype=torch.int64, device=device)
    for index in range(1, repetitions):
        disturb()
        multiply()
        differ += (bits(c) != first).any()
        if index % TOGETHER == 0:
            differ.item()
    return int(differ)


def invariant(
    N: int, K: int, rows: Sequence[int], device="cuda", dtype: torch.dtype = torch.bfloat16
) -> list[int]:
    """Those M of `rows` at which a row is not what it is at the largest M.

    The weight [N, K] is stored by rows, as a linear layer has it.
    """
    a = torch.randn(max(rows), K, device=device, dtype=dtype)
    weight = torch.randn(N, K, device=device, dtype=dtype)
    multiply = lambda part: tritemm.matmul(part, weight.mT, batch_invariant=True)  # noqa: E731
    whole = bits(multiply(a))
    differ = [(bits(multiply(a[:M])) != whole[:M]).any() for M in rows]
    return [M for M, flag in zip(rows, torch.stack(differ).tolist(), strict=True) if flag]


class Disturbance:
    """Products and copies of random sizes on a second stream, now and then."""

    def __init__(self, seed: int):
        self.rng, self.stream = random.Random(seed), torch.cuda.Stream()
        self.square = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
        self.long = torch.randn(2**24, device="cuda")

    def __call__(self) -> None:
        what = self.rng.random()
        with torch.cuda.stream(self.stream):
            if what < 0.4:
                size = 64 * self.rng.randint(1, 32)
                torch.mm(self.square[:size], self.square)
            elif what < 0.6:
                self.long[: 2 ** self.rng.randint(10, 24)].mul_(1.0)


def one(case: Case, repetitions: int, disturb, device="cuda") -> dict:
    """What came of repeating one problem."""
    differ, end = _tried(torch.OutOfMemoryError, repeated, case, repetitions, disturb, device)
    known = {"check": "repeat", "case": dataclasses.asdict(case), "problem": str(case)}
    known |= {"kernel": kind_of(case), "repetitions": repetitions, "differ": differ}
    return known | end


def layer(N: int, K: int, rows: int, device="cuda") -> dict:
    """What came of one layer with every M up to `rows`."""
    differ, end = _tried(ValueError, invariant, N, K, range(1, rows + 1), device)
    known = {"check": "batch_invariant", "problem": f"1 ... {rows} x {N} x {K} NT, bf16"}
    known |= {"rows": rows, "N": N, "K": K, "differ": len(differ or ()), "at": (differ or [])[:20]}
    return known | end


def _tried(refusal: type[Exception], compare: Callable, *given) -> tuple[Any, dict]:
    """What differs, None after a refusal; and how the line ends: with its words, and the time."""
    begin, differ, error = time.monotonic(), None, None
    try:
        differ = compare(*given)
    except refusal as raised:
        error = cli.short(raised)
    return differ, {"error": error, "seconds": round(time.monotonic() - begin, 2)}


def report(line: dict) -> bool:
    """Print a line; whether something in it is not as it should be."""
    differ, error = line["differ"], line["error"]
    if line["check"] == "repeat":
        what = f"{line['kernel']:<28} {line['repetitions']} repetitions"
        told = f"{differ} DIFFER from the first" if differ else "one pattern"
    else:
        what = "batch invariance"
        told = f"DIFFERS at {differ} M: {line['at']} ..." if differ else "every row the same"
    print(f"{line['problem']:<44} {what}: {error or told}", flush=True)
    return bool(differ) or error is not None
