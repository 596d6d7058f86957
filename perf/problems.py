"""What is raced: the shape suite, any CSV file of its columns, and random problems."""

from __future__ import annotations

import csv
import dataclasses
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from .case import ACCUMULATE, OUTPUT, Case, parse_layout

SUITE = Path(__file__).resolve().parent / "suite.csv"
#: The same of linear layers, with what follows each product.
LINEAR = SUITE.with_name("linear.csv")
COLUMNS = ("id", "class", "name", "batch", "M", "N", "K", "dtype", "out_dtype", "layout")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A case with the names that tables and selections use."""

    id: str
    group: str
    name: str
    case: Case

    def to_json(self) -> dict[str, str]:
        return {"id": self.id, "class": self.group, "name": self.name}


def read_suite(path: Path = SUITE) -> list[Problem]:
    """The problems of a CSV file with at least `COLUMNS`.

    `dtype` is a name of `perf.case.DTYPES` or tf32, which is fp32 multiplied so. A column `ending`
    says what follows each product, in the words of `perf.case.WORDS`.

    Raises:
        ValueError: names the file, the line and what is wrong there.
        OSError: the file can't be read.
    """
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{path}: no column {', '.join(missing)}; a suite has {COLUMNS}")
        problems, ids = [], set()
        for line in reader:
            try:
                problem = _problem(line)
                if problem.id in ids:
                    raise ValueError(f"a second {problem.id}")
            except ValueError as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
            ids.add(problem.id)
            problems.append(problem)
    return problems


def _problem(line: dict[str, str]) -> Problem:
    sizes = {}
    for name in ("batch", "M", "N", "K"):
        text = line[name] or ""
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"{name} is a count of 1 or more, not {text!r}")
        sizes[name] = int(text)
    dtype, precision = line["dtype"], "ieee"
    if dtype == "tf32":
        dtype, precision = "fp32", "tf32"
    for name in (dtype, line["out_dtype"]):
        if name not in ACCUMULATE and name not in OUTPUT.values():
            raise ValueError(f"a type is one of {', '.join((*ACCUMULATE, 'tf32'))}, not {name!r}")
    if dtype not in ACCUMULATE:
        raise ValueError(f"{dtype} is no type of operands")
    out_dtype = None if line["out_dtype"] == OUTPUT[dtype] else line["out_dtype"]
    case = Case(
        **sizes,
        layout=parse_layout(line["layout"]),
        dtype=dtype,
        accumulate=ACCUMULATE[dtype],
        precision=precision,
        out_dtype=out_dtype,
        ending=line.get("ending") or None,
    )
    check_ending(case)
    return Problem(line["id"], line["class"], line["name"], case)


def check_ending(case: Case) -> None:
    """Raises ValueError where a case can't have its ending."""
    after = case.after
    if not case.ending:
        return
    if case.batch > 1 or case.dtype not in ("bf16", "fp16"):
        raise ValueError(f"an ending is of one 16-bit product, not of {case}")
    if after.accumulate != (case.out_dtype == "fp32") or (case.out_dtype and not after.accumulate):
        raise ValueError(f"what accumulates is fp32, and the rest of the operands' type: {case}")
    if not after.accumulate and case.layout != "NT":
        raise ValueError(f"a linear layer's layout is NT, not {case.layout}")
    if after.gated and case.N % 2:
        raise ValueError(f"gate and up are halves of N, not of {case.N}")


#: Log2 of the least and the largest M, N and K of random problems; a quarter of them is skinny,
#: with an M from `SKINNY`. What costs more than `FLOPS`, 3 ms of an H200, is drawn again.
SIZES, SKINNY = (6, 14), (0, 6)
FLOPS = 2**41
#: Every dimension of a random problem is a multiple of one of these: whole tiles, 16 elements
#: (which Triton's plain loads want), 16 bytes (which TMA wants), anything.
MULTIPLES = (64, 16, 8, 1)
LAYOUTS = ("NN", "NT", "TN", "TT")


def random_problems(count: int, seed: int) -> list[Problem]:
    """16-bit problems with log-uniform M, N and K of every layout and alignment.

    The first of a seed are the same for any `count`. The class is the alignment; alignments and
    layouts are equally likely. The M of a skinny problem is no multiple of anything.
    """
    rng = random.Random(seed)
    problems = []
    while len(problems) < count:
        multiple, layout = rng.choice(MULTIPLES), rng.choice(LAYOUTS)
        dtype = rng.choice(("bf16", "fp16"))
        M, N, K = (multiple * max(1, round(_drawn(rng, SIZES) / multiple)) for _ in range(3))
        if rng.random() < 0.25:
            M = round(_drawn(rng, SKINNY))
        case = Case(M, N, K, layout, dtype)
        if case.flops > FLOPS:
            continue
        problems.append(Problem(f"{seed}-{len(problems)}", group_of(multiple), "random", case))
    return problems


def group_of(multiple: int) -> str:
    """The class of the random problems whose sizes are multiples of this."""
    return f"multiples of {multiple}" if multiple > 1 else "any size"


def _drawn(rng: random.Random, bits: tuple[int, int]) -> float:
    return 2 ** rng.uniform(*bits)


def chosen(path: Path, classes: Sequence[str] = (), ids: Sequence[str] = ()) -> list[Problem]:
    """Those of a file, of these classes and with these ids, if any are named.

    ValueError if one isn't there; else as of `read_suite`.
    """
    problems = read_suite(path)
    for what, words, known in (
        ("class", classes, dict.fromkeys(problem.group for problem in problems)),
        ("id", ids, [problem.id for problem in problems]),
    ):
        refuse_unknown(what, words, known)
    return [p for p in problems if (not classes or p.group in classes) and (not ids or p.id in ids)]


def refuse_unknown(what: str, words: Iterable[str], known: Iterable[str]) -> None:
    """Raises ValueError if a word names nothing."""
    for word in words:
        if word not in known:
            listed = ", ".join(dict.fromkeys(known))
            raise ValueError(f"no {what} is called {word!r}; there are {listed}")
