"""The linear layers of served models, and how many rows each is raced over.

A layer is `x @ W.T`, bf16, W stored [N, K]. `serving.csv` has a line per layer, and from which
fields of the model's config its shape is; TP8 is the share of one GPU of eight.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from .case import Case
from .problems import Problem

EXPERIMENT = "serving"
LAYERS = Path(__file__).resolve().parent / "serving.csv"
#: The largest M, and those that are multiples of little.
MOST, ODD = 4096, (17, 33, 65, 129, 257, 333, 513, 1001, 2047)


def _grid() -> tuple[int, ...]:
    """Quarters of octaves that are whole numbers, and `ODD`."""
    quarters = {2**bit * step / 4 for bit in range(MOST.bit_length()) for step in (4, 5, 6, 7)}
    return tuple(sorted({*ODD, *(int(M) for M in quarters if M.is_integer() and M <= MOST)}))


#: The M of every layer. They are 53, a prime: so a part (`part`) has other M of one layer than of
#: the next, and as many small ones as large ones.
ROWS = _grid()


@dataclasses.dataclass(frozen=True)
class Layer:
    """A weight [N, K] of a model."""

    model: str
    name: str
    N: int
    K: int

    @property
    def slug(self) -> str:
        """The model's name as options and ids have it: `llama-3-70b-tp8`."""
        return self.model.lower().replace(" ", "-")

    def problem(self, rows: int) -> Problem:
        case = Case(rows, self.N, self.K, "NT", "bf16")
        return Problem(f"{self.slug}/{self.name}/{rows}", self.model, self.name, case)


@functools.cache
def known() -> tuple[Layer, ...]:
    """Every layer, model by model."""
    with open(LAYERS, newline="") as file:
        lines = list(csv.DictReader(file))
    return tuple(Layer(x["model"], x["layer"], int(x["N"]), int(x["K"])) for x in lines)


def problems(
    models: Sequence[str] = (), layers: Sequence[str] = (), rows: Sequence[int] = ()
) -> list[Problem]:
    """Layer by layer, the least M first: of these models, layers and M, if any are named.

    Raises:
        ValueError: says which word names nothing, and what there is.
    """
    _refuse_unknown("model", models, [layer.slug for layer in known()])
    chosen = [layer for layer in known() if not models or layer.slug in models]
    _refuse_unknown("layer", layers, [layer.name for layer in chosen])
    chosen = [layer for layer in chosen if not layers or layer.name in layers]
    return [layer.problem(M) for layer in chosen for M in sorted(set(rows)) or ROWS]


def _refuse_unknown(what: str, words: Sequence[str], there: Sequence[str]) -> None:
    for word in words:
        if word not in there:
            listed = ", ".join(dict.fromkeys(there))
            raise ValueError(f"no {what} is called {word!r}; there are {listed}")


def part(text: str) -> slice:
    """Of a list: `2/4` is its second item and every fourth after that; ValueError if it is none."""
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
        raise ValueError(f"a part is 1/4, 2/4, 3/4 or 4/4, or of another number, not {text!r}")
    return slice(int(index) - 1, None, int(of))
