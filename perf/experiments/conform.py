"""`python -m perf conform`: hunts products whose result is wrong, cuBLAS's and tritemm's.

The operands hold 1 and -1, so every partial sum is an integer that fp32 (and fp64, int32) holds, in
any order and however K is split: the right result is the exact sum, rounded once to the output's
type, and any other bits are wrong. The sum needs no other product to be known: with all ones it is
K; and with A[i, k] = r[i] u[k] and B[k, j] = u[k] c[j], signs at random, it is K r[i] c[j].

A `Place` is an M, an N, a layout, types and an alignment; at each place many K are multiplied, with
tails of every kind, because that is where kernels and their split forms differ. Instead,
`--groups` hunts in the products of groups (conform_groups.py), `--bits` counts products whose bits
are cuBLAS's (conform_bits.py), and `--law` tests when exactly cuBLAS loses the end of K
(conform_law.py).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import tritemm

from ..cli import add_command, argument, positive, refuse, say, unable
from ..machine import environment
from ..tables import grouped

#: Operands and output, by their names in a finding; tf32 is fp32 multiplied so.
TYPES = (
    ("fp16", "fp16"), ("fp16", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"),
    ("fp32", "fp32"), ("tf32", "fp32"), ("int8", "int32"), ("fp64", "fp64"),
)  # fmt: skip
DTYPES = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32,
    "int8": torch.int8, "int32": torch.int32, "fp64": torch.float64,
}  # fmt: skip
DATA = ("ones", "signs")
#: Log2 of the largest M and N, and of K. Sums stay below what fp16 can store.
LARGEST, DEEPEST = 8, 15
#: Elements before an operand, and after each of its lines: 0 is aligned and packed.
SHIFTS, PADS = (0, 0, 0, 8, 1), (0, 0, 0, 8, 1)
#: K at each place.
DEPTHS = 2000
#: The default numbers of problems: of products of two matrices, and of each other search.
PROBLEMS = 100_000
OTHERS = {"groups": 2000, "bits": 20_000, "law": 60_000}
#: Processes that share the GPU: a problem that is new costs Python some milliseconds.
WORKERS = 12
#: In how many words a refusal is told.
SENTENCES = 5
#: What an output holds before: no result is that.
POISON = -77
#: As what results are compared, by the bytes of an element: 0 is not -0.
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

EXAMPLES = """
python -m perf conform
python -m perf conform --n 20000 --seed 1 --out found.json
python -m perf conform --groups --n 2000
python -m perf conform --law --out docs/conformance_law.json   # needs nvmath-python
"""


@dataclasses.dataclass(frozen=True)
class Place:
    """All of a product but its K; `shift` and `pad` in elements."""

    M: int
    N: int
    layout: str
    dtype: str
    output: str
    shift: int
    pad: int


@dataclasses.dataclass(frozen=True)
class Finding:
    """A product that came out wrong: `wrong` of its elements, of which one `got` and not `want`."""

    by: str
    place: Place
    K: int
    data: str
    wrong: int
    got: float
    want: float


def register(commands) -> None:
    text = "Search for wrong results, cuBLAS's and ours, in products whose exact result is known."
    command = add_command(commands, "conform", run, text, EXAMPLES)
    add = command.add_argument
    what = command.add_mutually_exclusive_group()
    for name, meaning in (
        ("groups", "search in grouped_mm, with random groups"),
        ("bits", "count the products that have cuBLAS's bits; needs nvmath-python"),
        ("law", "test when exactly cuBLAS loses the end of K; needs nvmath-python"),
    ):
        what.add_argument(f"--{name}", action="store_true", help=meaning)
    others = ", ".join(f"{count} with --{name}" for name, count in OTHERS.items())
    text = f"number of problems; default: {PROBLEMS}, or {others}"
    add("--n", type=argument(positive), help=text)
    add("--seed", type=int, default=0, help="seed of the problems and of the signs")
    add("--out", type=Path, help="write the findings to this file, as JSON")


def run(args: argparse.Namespace) -> int:
    """0; 1 if a product of ours is wrong; 2: it can't begin."""
    if reason := unable("conform"):
        return refuse(reason)
    from . import conform_bits, conform_groups, conform_law  # made of this module's classes

    if (args.bits or args.law) and (reason := conform_law.unable()):
        return refuse(reason)
    begin, hunt = time.monotonic(), Found()
    others = {
        "groups": (conform_groups.GroupHunt, conform_groups.drawn),
        "bits": (conform_bits.BitsHunt, conform_bits.drawn),
        "law": (conform_law.LawHunt, conform_law.drawn),
    }
    if asked := next((name for name in others if getattr(args, name)), None):
        kind, draw = others[asked]
        jobs = draw(args.n or OTHERS[asked], args.seed)
    else:
        kind, jobs = Hunt, [[place] for place in drawn(args.n or PROBLEMS, args.seed)]
    context = multiprocessing.get_context("spawn")
    workers = min(WORKERS, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, context, _begin, (kind, args.seed, "cuda")) as pool:
        for future in as_completed([pool.submit(_hunted, job) for job in jobs]):
            hunt.add(future.result())
            say(f"{time.monotonic() - begin:4.0f} s: {hunt.problems} problems")
    seconds = time.monotonic() - begin
    if args.out:
        text = json.dumps(as_json(hunt, args.seed, seconds))
        args.out.write_text(text.replace('{"by"', '\n{"by"') + "\n")
    print(told(hunt, seconds))
    return int(any(finding.by != "cublas" for finding in hunt.findings))


def drawn(count: int, seed: int) -> list[tuple[Place, list[int]]]:
    """So many problems, as places and their K."""
    rng = random.Random(seed)
    places = []
    while count > 0:
        kind = stored(rng)
        place = Place(size(rng, LARGEST), size(rng, LARGEST), *kind)
        depths = {depth(rng) for _ in range(min(count, DEPTHS))}
        places.append((place, sorted(depths)))
        count -= len(depths)
    return places


def stored(rng: random.Random) -> tuple[str, str, str, int, int]:
    """What follows a place's M and N."""
    dtype, output = rng.choice(TYPES)
    layout = rng.choice("NT") + rng.choice("NT")
    return layout, dtype, output, rng.choice(SHIFTS), rng.choice(PADS)


def size(rng: random.Random, log: float) -> int:
    """Up to 2**log; half of them multiples of 8."""
    value = round(2 ** rng.uniform(0, log))
    return value if rng.random() < 0.5 else max(8, value // 8 * 8)


def depth(rng: random.Random) -> int:
    """A K: half of them some blocks of 128 and a tail of eights, half any."""
    if rng.random() < 0.5:
        return 128 * rng.randint(1, 2**DEEPEST // 128 - 1) + 8 * rng.randint(0, 15)
    return round(2 ** rng.uniform(0, DEEPEST))


@dataclasses.dataclass
class Found:
    """What came of some problems; products by who multiplied, or refused to, and in what words.

    `tallies`: what a hunt counts besides, by words with " | " between them.
    """

    problems: int = 0
    products: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    words: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    tallies: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def add(self, other: Found) -> None:
        for name, own in vars(other).items():
            setattr(self, name, getattr(self, name) + own)


def _begin(kind: type[Hunt], seed: int, device: str) -> None:
    """What a process of the pool keeps."""
    global _hunt
    flags = torch.backends.cuda.matmul
    # Of a split K, partial sums in 16 bits are torch's default, and would be found everywhere.
    flags.allow_fp16_reduced_precision_reduction = False
    flags.allow_bf16_reduced_precision_reduction = False
    _hunt = kind(seed, device)


def _hunted(job: Sequence[tuple[Place, list[int]]]) -> Found:
    found = Found()
    for place, depths in job:
        found.add(_hunt.multiply(place, depths))
    return found


class Hunt:
    """Multiplies and judges.

    Operands of ones are views of the same memory; those of signs are written in place.
    """

    #: What operands hold.
    data: tuple[str, ...] = DATA

    def __init__(self, seed: int, device: str):
        self.device = device
        generator = torch.Generator(device).manual_seed(seed)
        rows, columns, along = (
            torch.randint(0, 2, (count,), generator=generator, device=device) * 2 - 1
            for count in (2**LARGEST, 2**LARGEST, 2**DEEPEST)
        )
        self.room = 2**LARGEST * (2**DEEPEST + max(PADS)) + max(SHIFTS)
        self.signs = {t: [v.to(t) for v in (rows, columns, along)] for t in set(DTYPES.values())}
        self.ones = {t: torch.ones(self.room, dtype=t, device=device) for t in self.signs}
        self.written = {t: torch.ones(2 * self.room, dtype=t, device=device) for t in self.signs}
        self.sums = rows[:, None] * columns

    def operands(self, place: Place, K: int, data: str) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = DTYPES[place.dtype]
        memory = self.ones[dtype] if data == "ones" else self.written[dtype]
        beyond = 0 if data == "ones" else self.room
        a = view(memory, place.shift, (place.M, K), place.layout[0], place.pad)
        b = view(memory, beyond + place.shift, (K, place.N), place.layout[1], place.pad)
        if data == "signs":
            rows, columns, along = self.signs[dtype]
            torch.mul(rows[: place.M, None], along[:K], out=a)
            torch.mul(along[:K, None], columns[: place.N], out=b)
        return a, b

    def multiply(self, place: Place, depths: Sequence[int]) -> Found:
        """All K of a place, with all data; the verdicts are read once, at the end."""
        precision = "tf32" if place.dtype == "tf32" else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        found = Found(len(depths))
        jobs, verdicts = [], torch.zeros(4 * len(depths), dtype=torch.bool, device=self.device)
        for K in depths:
            for data in self.data:
                a, b = self.operands(place, K, data)
                want = self.exact(place, K, data)
                for by in self.multipliers():
                    got = self.product(by, place, a, b, want)
                    if isinstance(got, str):
                        found.refused[by.__name__] += 1
                        found.words[f"{by.__name__}: {got}"] += 1
                        continue
                    torch.any(differ(got, want), out=verdicts[len(jobs)])
                    jobs.append((by, K, data))
                    found.products[by.__name__] += 1
        for index in verdicts.nonzero().flatten().tolist():
            found.findings.append(self.finding(place, *jobs[index]))
        return found

    def exact(self, place: Place, K: int, data: str) -> torch.Tensor:
        """The right result."""
        sums = self.sums[: place.M, : place.N]
        return ((torch.ones_like(sums) if data == "ones" else sums) * K).to(DTYPES[place.output])

    def multipliers(self) -> Sequence[Callable]:
        return cublas, ours

    def product(self, by, place: Place, a, b, want: torch.Tensor) -> torch.Tensor | str:
        """The result of `by`, in memory like that of `want`, or the words in which it refuses."""
        out = torch.full_like(want, POISON)
        try:
            by(a, b, out, place)
        except (RuntimeError, ValueError) as error:
            if not self.refuses(by, error):
                raise
            return str(error).partition("\n")[0]
        return out

    def refuses(self, by, error: Exception) -> bool:
        """Whether torch's call refuses. What else fails ends the hunt: an error of the device, or
        of ours, is no refusal."""
        fatal = torch.OutOfMemoryError, torch.AcceleratorError, ValueError
        return by is not ours and not isinstance(error, fatal)

    def finding(self, place: Place, by, K: int, data: str) -> Finding:
        """The worst element of a product that was seen to be wrong, multiplied again."""
        want = self.exact(place, K, data)
        got = self.product(by, place, *self.operands(place, K, data), want)
        assert isinstance(got, torch.Tensor)
        error = (got.double() - want.double()).abs().flatten()
        at = int(error.argmax())
        return Finding(
            by.__name__, place, K, data, int(differ(got, want).sum()),
            got.flatten()[at].item(), want.flatten()[at].item(),
        )  # fmt: skip


def differ(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Which elements have other bits."""
    bits = BITS[want.itemsize]
    return got.view(bits) != want.view(bits)


def view(pool: torch.Tensor, start: int, shape: Sequence[int], layout: str, pad: int):
    """Matrices whose lines stand in the pool from `start` on, N as rows or T as columns."""
    *batch, rows, cols = shape
    lines, length = (rows, cols) if layout == "N" else (cols, rows)
    strides = (*[lines * (length + pad)] * len(batch), length + pad, 1)
    made = pool.as_strided((*batch, lines, length), strides, start)
    return made if layout == "N" else made.mT


def cublas(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, place: Place) -> None:
    """The torch call that a user would write."""
    if out.dtype == torch.int32:
        torch._int_mm(a, b, out=out)
    else:
        torch.mm(a, b, out=out, **({"out_dtype": out.dtype} if out.dtype != a.dtype else {}))


def ours(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, place: Place) -> None:
    tritemm.matmul(a, b, out=out, **options(place))


def options(place: Place) -> dict[str, Any]:
    """The options of our product."""
    asked: dict[str, Any] = {"out_dtype": DTYPES[place.output]}
    if DTYPES[place.dtype] == torch.float32:
        asked["precision"] = "tf32" if place.dtype == "tf32" else "ieee"
    return asked


def as_json(hunt: Found, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "environment": dataclasses.asdict(environment()), "seed": seed, "seconds": round(seconds),
        "problems": hunt.problems, "products": dict(hunt.products), "refused": dict(hunt.refused),
        "words": dict(hunt.words), "tallies": dict(sorted(hunt.tallies.items())),
        "findings": [dataclasses.asdict(each) | {"line": line(each)} for each in hunt.findings],
    }  # fmt: skip


def line(finding: Finding) -> str:
    """What shows a finding of ones, to be pasted; "" of signs, whose pool it would need."""
    place, K = finding.place, finding.K
    if finding.data != "ones" or place.shift or place.pad:
        return ""

    def ones(rows: int, cols: int, layout: str) -> str:
        sizes = f"{rows}, {cols}" if layout == "N" else f"{cols}, {rows}"
        dtype = str(DTYPES[place.dtype])
        return f'torch.ones({sizes}, dtype={dtype}, device="cuda")' + ".mT" * (layout == "T")

    a, b = ones(place.M, K, place.layout[0]), ones(K, place.N, place.layout[1])
    if finding.by == "cublas" and place.dtype == "int8":
        return f"torch._int_mm({a}, {b})"
    more = f", out_dtype={DTYPES[place.output]}" if place.output != place.dtype else ""
    return f"{'torch.mm' if finding.by == 'cublas' else 'tritemm.matmul'}({a}, {b}{more})"


def told(hunt: Found, seconds: float) -> str:
    """What was found, those of one place together."""
    counts = collections.Counter(found.by for found in hunt.findings)
    lines = [
        f"{by}: {counts[by]} of {hunt.products[by]} products wrong, {hunt.refused[by]} refused"
        for by in hunt.products | hunt.refused
    ]
    lines += [f"  {count} refused by {words}" for words, count in hunt.words.most_common(SENTENCES)]
    lines += [f"{words}: {count}" for words, count in sorted(hunt.tallies.items())]
    places = grouped(hunt.findings, lambda found: (found.by, found.place))
    for (by, place), findings in places.items():
        one = next((found for found in findings if line(found)), findings[0])
        depths = [found.K for found in findings]
        lines += [
            f"{by}, {place}: {len(findings)}, with K from {min(depths)} to {max(depths)}",
            f"  K = {one.K}, {one.data}: {one.wrong} wrong, one {one.got:g} for {one.want:g}",
            f"  {line(one)}",
        ]
    return "\n".join([*lines, f"{hunt.problems} problems in {seconds:.0f} s"])
