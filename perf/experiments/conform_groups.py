"""`python -m perf conform --groups`: searches for wrong results of `grouped_mm`.

As in a product of two matrices the operands hold 1 and -1, A[i, k] = r[i] u[k], and each group g
has signs of its own, B[g][k, j] = u[k] c[g, j]. So the right result is K r[i] c[g, j], of K_g terms
where K is cut, and who takes a row, a column or a term for the neighbour's has other signs or
another sum. What is behind the last group is full of signs, too, and has to come out as zeros.

Operands stand in memory that is poisoned between their lines. All is multiplied twice: both results
must be right, so they have the same bits.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence

import torch

import tritemm

from .conform import DTYPES, POISON, Hunt, Place, options, size, stored, view

#: Log2 of the largest size that isn't cut, of the one that is, and of the number of groups.
LARGEST, LONGEST, GROUPS = 9, 13, 10.4
#: Elements of all the matrices of an operand or a result, without pads.
ROOM = 2**24
#: Groups that are about as large; of which a few have most; of which most are empty, or all but
#: one; of multiples of 64; and of one row.
SIZES = ("even", "skewed", "sparse", "one", "blocks", "single")
#: Groupings of each form, layout, types and sizes that aren't cut: so few kernels are compiled.
EACH = 16


@dataclasses.dataclass(frozen=True)
class Grouping(Place):
    """A place whose rows (`cut` is "m"), columns ("n") or K ("k") are cut into `count` groups.

    They share the first `covered` of them, or fewer.
    """

    cut: str
    count: int
    sizes: str
    covered: int
    seed: int


def drawn(count: int, seed: int) -> list[list[tuple[Place, list[int]]]]:
    """So many groupings, each with a K; those of a list share their kernels."""
    rng, jobs = random.Random(seed), []
    while count > 0:
        cut, kind = rng.choice("mnk"), stored(rng)
        whole = size(rng, LARGEST), size(rng, LARGEST)
        most = min(GROUPS, math.log2(ROOM / math.prod(whole)))
        job: list[tuple[Place, list[int]]] = []
        for _ in range(min(count, EACH)):
            length = max(size(rng, LONGEST), size(rng, LONGEST))
            groups = round(2 ** rng.uniform(0, most))
            M, N, K = _with(length, whole, cut)
            covered = length if rng.random() < 0.6 else rng.randint(0, length)
            groups_of = rng.choice(SIZES), covered, rng.getrandbits(32)
            job.append((Grouping(M, N, *kind, cut, groups, *groups_of), [K]))
        jobs.append(job)
        count -= len(job)
    return jobs


def _with(length: int, whole: tuple[int, int], cut: str) -> list[int]:
    """M, N and K, of which one is the length that is cut."""
    sizes = list(whole)
    sizes.insert("mnk".index(cut), length)
    return sizes


@functools.lru_cache(maxsize=4)
def ends(place: Grouping, K: int) -> tuple[int, ...]:
    """Where each group ends."""
    rng, count = random.Random(place.seed), place.count
    length = min(place.covered, {"m": place.M, "n": place.N, "k": K}[place.cut])
    if place.sizes == "single":
        taken, step = rng.sample(range(count), min(count, length)), 1
    else:
        step = 64 if place.sizes == "blocks" else 1
        taken = rng.choices(range(count), _weights(place.sizes, count, rng), k=length // step)
    sizes = collections.Counter(taken)
    return tuple(itertools.accumulate(step * sizes[group] for group in range(count)))


def _weights(sizes: str, count: int, rng: random.Random) -> list[float]:
    """How likely each group is to get a row."""
    if sizes == "skewed":
        return rng.sample([1 / (1 + place) for place in range(count)], count)
    if sizes in ("sparse", "one"):
        chosen = rng.sample(range(count), max(1, count // 5) if sizes == "sparse" else 1)
        return [float(group in chosen) for group in range(count)]
    return [1.0] * count


class GroupHunt(Hunt):
    """Multiplies groups twice, and judges."""

    data = ("signs",)

    def __init__(self, seed: int, device: str):
        self.device = device
        generator = torch.Generator(device).manual_seed(seed)
        signs = torch.randint(0, 2, (2**21,), generator=generator, device=device)
        self.pool = (signs * 2 - 1).to(torch.int8)

    def operands(self, place, K: int, data: str) -> tuple[torch.Tensor, torch.Tensor]:
        a, b, _ = self.problem(place, K, place.cut)
        return self.placed(a, place, place.layout[0]), self.placed(b, place, place.layout[1])

    def exact(self, place, K: int, data: str) -> torch.Tensor:
        return self.problem(place, K, place.cut)[2].to(DTYPES[place.output]).contiguous()

    def problem(self, place: Grouping, K: int, cut: str) -> tuple[torch.Tensor, ...]:
        """Both operands and the right result, as integers; of columns, those of rows transposed."""
        M, N = (place.N, place.M) if cut == "n" else (place.M, place.N)
        first, counts = place.seed % 2**20, (M, K, (place.count + 1) * N)
        rows, along, columns = self.pool[first : first + sum(counts)].split(counts)
        columns = columns.view(place.count + 1, N)
        offs = offsets(place, K, self.device)
        at = torch.arange(K if cut == "k" else M, dtype=offs.dtype, device=self.device)
        group = torch.searchsorted(offs, at, right=True)  # behind the last: their number
        a = rows[:, None] * along
        if cut == "k":
            terms = offs.diff(prepend=offs.new_zeros(1))
            want = terms[:, None, None] * rows[:, None] * columns[:-1, None]
            return a, along[:, None] * columns[group], want
        b = along[:, None] * columns[:-1, None]
        want = K * (group < place.count)[:, None] * rows[:, None] * columns[group]
        return (b.mT, a.mT, want.mT) if cut == "n" else (a, b, want)

    def placed(self, values: torch.Tensor, place: Place, layout: str) -> torch.Tensor:
        """These values as the place has them in memory."""
        lines = values.numel() // values.shape[-1 if layout == "N" else -2]
        room, dtype = place.shift + values.numel() + lines * place.pad, DTYPES[place.dtype]
        memory = torch.full((room,), POISON, dtype=dtype, device=self.device)
        return view(memory, place.shift, values.shape, layout, place.pad).copy_(values)

    def multipliers(self) -> Sequence[Callable]:
        return ours, ours

    def refuses(self, by, error: Exception) -> bool:
        return isinstance(error, (NotImplementedError, ValueError))


def offsets(place: Grouping, K: int, device) -> torch.Tensor:
    return torch.tensor(ends(place, K), dtype=torch.int32, device=device)


def ours(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, place: Grouping) -> None:
    offs = offsets(place, a.shape[-1], a.device)
    tritemm.grouped_mm(a, b, offs=offs, out=out, **options(place))
