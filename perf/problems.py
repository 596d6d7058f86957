"""What is raced: the shape suite, any file of its columns, and random problems."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tritemm.dtypes import PRECISIONS
from tritemm.problem import RESIDUES

from .case import ACCUMULATE, INT4_GROUP, OUTPUT, SCALINGS, WHOLE, Case, parse_layout

SUITE = Path(__file__).resolve().parent / "suite.csv"
#: The same of linear layers, with what follows each product.
LINEAR = SUITE.with_name("linear.csv")
#: Products of 8 bits, most with scales.
SCALED = SUITE.with_name("scaled.csv")
#: By weights of 4 bits.
INT4 = SUITE.with_name("int4.csv")
#: The columns of a file: the sizes; and the rest, with their defaults.
SIZES_OF = ("M", "N", "K")
LEFT_OUT = {
    "id": "", "class": "mine", "name": "", "batch": "1", "dtype": "bf16", "out_dtype": "",
    "layout": "NT", "ending": "", "scaling": "", "weight": "1",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Problem:
    """A case with the names that tables and selections use; `weight`: how often it is run."""

    id: str
    group: str
    name: str
    case: Case
    weight: int = 1

    def to_json(self) -> dict[str, str]:
        found = {"id": self.id, "class": self.group, "name": self.name}
        return found if self.weight == 1 else found | {"weight": str(self.weight)}


def read_suite(path: Path = SUITE) -> list[Problem]:
    """The problems of a CSV file, or of a JSON list of objects, with `SIZES_OF` and more.

    `dtype` is a name of `perf.case.DTYPES`, or says how fp32 is multiplied: tf32, bf16x6 ...; or
    int8xN, how fp32 or fp64 is, which of them `out_dtype` says. `ending` says what follows each
    product, in the words of `perf.case.WORDS`, and `scaling`, of `perf.case.SCALINGS`, what scales
    operands of 8 bits have; fp8 has row scales unless the file says otherwise.

    Raises:
        ValueError: names the file, the line and what is wrong there.
        OSError: the file can't be read.
    """
    with open(path, newline="") as file:
        lines = json.load(file) if Path(path).suffix == ".json" else list(csv.DictReader(file))
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, 1 if Path(path).suffix == ".json" else 2):
        try:
            problem = _problem({k: str(v) for k, v in line.items() if v not in (None, "")}, number)
            if problem.id in problems:
                raise ValueError(f"a second {problem.id}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        problems[problem.id] = problem
    return list(problems.values())


def _problem(given: Mapping[str, str], number: int) -> Problem:
    refuse_unknown("column", given, (*SIZES_OF, *LEFT_OUT))
    line = dict.fromkeys(SIZES_OF, "") | LEFT_OUT | given
    counts = {}
    for name in (*SIZES_OF, "batch", "weight"):
        if not line[name].isdecimal() or int(line[name]) < 1:
            raise ValueError(f"{name} is a count of 1 or more, not {line[name]!r}")
        counts[name] = int(line[name])
    weight = counts.pop("weight")
    dtype, precision = _operands(line["dtype"], line["out_dtype"])
    for name in (dtype, line["out_dtype"]):
        if name not in ("", *ACCUMULATE, *OUTPUT.values()):
            raise ValueError(f"a type is one of {', '.join((*ACCUMULATE, 'tf32'))}, not {name!r}")
    if dtype not in ACCUMULATE:
        raise ValueError(f"{dtype} is no type of operands")
    case = Case(
        **counts,
        layout=parse_layout(line["layout"]),
        dtype=dtype,
        accumulate=ACCUMULATE[dtype],
        precision=precision,
        ending=line["ending"] or None,
        scaling=line["scaling"] or ("row" if dtype == "fp8" else None),
    )
    if line["out_dtype"] not in ("", case.output):
        case = dataclasses.replace(case, out_dtype=line["out_dtype"])
    check_ending(case)
    check_scaling(case)
    return Problem(line["id"] or str(number), line["class"], line["name"], case, weight)


def _operands(word: str, out_dtype: str) -> tuple[str, str]:
    """The operands' type and how it is multiplied, as a file's `dtype` says it."""
    if word in ACCUMULATE or word not in PRECISIONS:
        return word, "ieee"
    if word not in RESIDUES:
        return "fp32", word
    if out_dtype not in ("fp32", "fp64"):
        told = f"{word} multiplies fp32 or fp64, which out_dtype says, not {out_dtype!r}"
        raise ValueError(told)
    return out_dtype, word


def check_ending(case: Case) -> None:
    """Raises ValueError where a case can't have its ending."""
    after = case.after
    if not case.ending:
        return
    if after.symmetric:
        if case.M != case.N or case.layout not in ("NT", "TN"):
            raise ValueError(f"a symmetric product is of a and a.mT, square, NT or TN, not {case}")
        return
    if case.batch > 1 or case.dtype not in ("bf16", "fp16"):
        raise ValueError(f"an ending is of one 16-bit product, not of {case}")
    if after.accumulate != (case.out_dtype == "fp32") or (case.out_dtype and not after.accumulate):
        raise ValueError(f"what accumulates is fp32, and the rest of the operands' type: {case}")
    if not after.accumulate and case.layout != "NT":
        raise ValueError(f"a linear layer's layout is NT, not {case.layout}")
    if after.int4 and case.K % INT4_GROUP:
        raise ValueError(f"a weight of 4 bits has multiples of {INT4_GROUP} columns, not {case.K}")
    if after.gated and case.N % 2:
        raise ValueError(f"gate and up are halves of N, not of {case.N}")


def check_scaling(case: Case) -> None:
    """Raises ValueError where a case can't have its scales."""
    if case.scaling is None:
        return
    if case.scaling not in SCALINGS:
        raise ValueError(f"a scaling is one of {', '.join(SCALINGS)}, not {case.scaling!r}")
    if case.dtype not in ("fp8", "int8"):
        raise ValueError(f"scales are of fp8 or int8, not of {case.dtype}")
    if case.dtype == "int8" and case.scaling not in WHOLE:
        raise ValueError(f"scales of int8 are of all of K, {' or '.join(WHOLE)}: {case}")
    if case.batch > 1 or case.ending:
        raise ValueError(f"scales go with neither a batch nor an ending: {case}")
    if case.output not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"what has scales has a result in bf16, fp16 or fp32: {case}")


#: Log2 of the least and the largest M, N and K of random problems; a quarter of them is skinny,
#: with an M from `SKINNY`. What costs more than `FLOPS`, 3 ms of an H200, is drawn again.
SIZES, SKINNY = (6, 14), (0, 6)
HALVES, WIDE = ("bf16", "fp16"), ("fp32", "fp64")
FLOPS = {HALVES: 2**41, WIDE: 2**37}
#: Every dimension of a random problem is a multiple of one of these: whole tiles, 16 elements
#: (which Triton's plain loads want), 16 bytes (which TMA wants), anything.
MULTIPLES = (64, 16, 8, 1)
LAYOUTS = ("NN", "NT", "TN", "TT")


def random_problems(count: int, seed: int, dtypes: tuple[str, str] = HALVES) -> list[Problem]:
    """16-bit problems, or `WIDE` ones, with log-uniform M, N and K of every layout and alignment.

    The first of a seed are the same for any `count`. The class is the alignment, and the type of
    wide ones; alignments, layouts and types are equally likely. The M of a skinny problem is no
    multiple of anything.
    """
    narrow = dtypes == HALVES
    rng = random.Random(seed if narrow else f"{seed} wide")
    problems: list[Problem] = []
    while len(problems) < count:
        multiple, layout = rng.choice(MULTIPLES), rng.choice(LAYOUTS)
        dtype = rng.choice(dtypes)
        M, N, K = (multiple * max(1, round(_drawn(rng, SIZES) / multiple)) for _ in range(3))
        if rng.random() < 0.25:
            M = round(_drawn(rng, SKINNY))
        case = Case(M, N, K, layout, dtype, ACCUMULATE[dtype])
        if case.flops > FLOPS[dtypes]:
            continue
        key = f"{seed}-{'' if narrow else 'wide-'}{len(problems)}"
        group = group_of(multiple) if narrow else dtype
        problems.append(Problem(key, group, "random", case))
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
