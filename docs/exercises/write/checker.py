"""What checks a kernel: it runs it on products of many kinds, and says where it goes wrong."""

import contextlib
import dataclasses
import faulthandler
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TextIO

import numpy as np
import torch

from docs.exercises import Wrong, told

from . import advice
from .ahead import missing
from .memory import STORED, Looker, Matrix, line_of

FLOATS = HALF, FLOAT = torch.float16, torch.float32
INTEGER = torch.int32


@dataclasses.dataclass
class Watchdog:
    """Ends the process when a step takes too long, with the stacks of all threads in `report`."""

    seconds: float = 0
    report: TextIO | None = None

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        if self.report is None:  # as in a process that nobody waits for
            yield
            return
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=self.report)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


WATCHDOG = Watchdog()


def small(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Whole numbers from -3 to 3, whose products and sums every type holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, tuple(shape), generator=generator).float()


@dataclasses.dataclass(frozen=True)
class Product:
    """C = A @ B, and how the three are stored."""

    M: int
    N: int
    K: int
    stored: tuple[str, str, str] = ("rows", "rows", "rows")
    dtype: torch.dtype = torch.float16

    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        of_a, of_b, of_c = self.stored
        a, b = small((self.M, self.K), seed=1), small((self.K, self.N), seed=2)
        return (
            Matrix("A", a.shape, self.dtype, of_a, a),
            Matrix("B", b.shape, self.dtype, of_b, b),
            Matrix("C", (self.M, self.N), self.dtype, of_c),
        )

    def at_most(self, K: int) -> "Product":
        """The same with no more elements of K than that."""
        return dataclasses.replace(self, K=min(self.K, K))

    def __str__(self) -> str:
        said = [f"M = {self.M}, N = {self.N}, K = {self.K}"]
        for name, stored in zip("ABC", self.stored, strict=True):
            if STORED[stored]:
                said.append(f"{name} {STORED[stored]}")
        return ", ".join(said)


#: Products that are ragged in every way, of both types.
RAGGED = (
    Product(32, 32, 32), Product(37, 50, 70), Product(16, 1, 33, dtype=torch.float32),
    Product(1, 40, 5), Product(50, 37, 64, dtype=torch.float32),
)  # fmt: skip
#: The same in strides of every kind.
STRIDED = (
    *RAGGED,
    *(dataclasses.replace(RAGGED[1], stored=stored) for stored in (
        ("columns", "rows", "rows"), ("rows", "columns", "rows"), ("rows", "rows", "columns"),
        ("apart", "rows", "rows"), ("rows", "apart", "rows"), ("columns", "columns", "apart"),
    )),
)  # fmt: skip


def multiply(module: ModuleType, name: str, case: Product, grid: tuple[int, ...],
             clues: Sequence[tuple[Callable[..., torch.Tensor], str]] = (),
             said: str = "", **constants: Any) -> None:  # fmt: skip
    """Check a kernel that has the usual arguments of the ladder, on one product.

    `said` is what else is said of the case. A clue's guess is a function of A and B in fp64.
    """
    a, b, c = case.matrices()
    strides = [stride for each in (a, b, c) for stride in each.tensor.stride()]
    blocks = "".join(f", {each} = {value}" for each, value in constants.items())

    def cause(looker: Looker, program: int) -> str:
        return strayed(looker, program, case.K, **constants)

    looker = launch(module, name, grid, a, b, c, case.M, case.N, case.K, *strides,
                    case=f"{said}{case}{blocks}", cause=cause, **constants)  # fmt: skip
    exact = a.tensor.double(), b.tensor.double()
    guesses = [(guess(*exact), clue) for guess, clue in clues]
    compare(f"With {looker.case}", c, exact[0] @ exact[1], guesses,
            lambda program: cause(looker, program))  # fmt: skip


def strayed(looker: Looker, program: int, K: int, BLOCK_M: int, BLOCK_N: int,
            BLOCK_K: int = 0) -> str:  # fmt: skip
    """In which step of K a program first loads a block from elsewhere than it should.

    "" unless each program has one tile of C, and loads a block of A and one of B in each step.
    """
    loads = [looker.begins.get((program, name), ()) for name in "AB"]
    if len(looker.grid) != 2 or not BLOCK_K or max(map(len, loads)) > -(-K // BLOCK_K):
        return ""
    row, col = (int(each) for each in np.unravel_index(program, looker.grid))
    for step, pair in enumerate(itertools.zip_longest(*loads)):
        k = step * BLOCK_K
        places = (row * BLOCK_M, k), (k, col * BLOCK_N)
        for each, begin, place in zip(loads, pair, places, strict=True):
            if begin is not None and begin != (want := begin.should(*place)):
                again = " again" if step and begin == each[step - 1] else ""
                beyond = f", outside of {begin.matrix.name}," if begin.outside() else ""
                does = f"loads its block of {begin.matrix.name} at {begin}{again}{beyond}"
                return f"{_in_step(step, k, looker.called(program))} {does} instead of {want}."
    return ""


def _in_step(step: int, k: int, program: str) -> str:
    """The beginning of a sentence on what a program does in its first step that is wrong."""
    if not step:
        return f"In the step that begins at k = 0, program {program}"
    steps = "first step" if step == 1 else f"first {step} steps"
    right = f"Program {program} loads the right blocks in its {steps}, but"
    return f"{right} in the step that begins at k = {k} it"


def tiles(case: Product, rows: int, columns: int) -> tuple[int, int]:
    """How many tiles C has."""
    return -(-case.M // rows), -(-case.N // columns)


def launch(module: ModuleType, name: str, grid: tuple[int, ...], *arguments: Any,
           case: str, seed: int = 0, cause: Callable[[Looker, int], str] = lambda *_: "",
           **constants: Any) -> Looker:  # fmt: skip
    """Run a kernel of the file on these arguments, of which matrices become tensors.

    `Wrong` if it raises, touches what it shouldn't, or stores an element twice. `case` and `cause`
    are a `Looker`'s.
    """
    matrices = [each for each in arguments if isinstance(each, Matrix)]
    given = [each.tensor if isinstance(each, Matrix) else each for each in arguments]
    looker = Looker(module.__file__, matrices, grid, seed, case, cause)
    kernel = found(module, name)
    with WATCHDOG.limited(), looker.looking():
        try:
            kernel[grid](*given, **constants)
        except Exception as error:
            raise explained(module.__file__, error, f", with {case}") from error
    return looker


def found(module: ModuleType, name: str) -> Any:
    """The file's kernel; `Wrong` if it has none of that name."""
    if not hasattr(module, name):
        raise Wrong(missing(name, list(vars(module))))
    return getattr(module, name)


def explained(file: str, error: BaseException, case: str = "") -> Wrong:
    """What a kernel raised, as the interpreter hands it on, in which case."""
    while error.__cause__ is not None and not isinstance(error, Wrong):
        error = error.__cause__
    if isinstance(error, Wrong):
        return error
    said = f"{line_of(file, error)}{case}: {told(error)}. {advice.shapes(file, error)}"
    return Wrong(said.rstrip())


def compare(case: str, got: Matrix, want: torch.Tensor,
            clues: Sequence[tuple[torch.Tensor, str]] = (),
            elsewhere: Callable[[int], str] = lambda program: "") -> None:  # fmt: skip
    """`Wrong` unless the matrix holds what is wanted.

    A clue is a result that a known mistake has, and a sentence about it. `elsewhere` may have one
    about a program whose result is none of these.
    """
    values, want = got.tensor.double(), want.double()
    differs = ~(values == want)
    if not differs.any():
        return
    if (missing := torch.from_numpy(got.owners() < 0)).any():
        said = f"no program stores {_first(got, missing)}."
        raise Wrong(f"{case}: {said}{_extent(missing, 'left out')}")
    place = tuple(differs.nonzero()[0].tolist())
    said = f"{_first(got, differs)} is {values[place]:.6g}; it should be {want[place]:.6g}."
    clue = next((clue for guess, clue in clues if torch.equal(values, guess.double())), "")
    clue = clue or elsewhere(int(got.owners()[place]))
    if values[place].isnan():
        clue = "What a load masks out may have any value, here NaN, unless it has `other`."
    raise Wrong(f"{case}: {said}{_extent(differs, 'wrong')} {clue}".rstrip())


def _first(matrix: Matrix, which: torch.Tensor) -> str:
    """`C[3, 4]`."""
    return f"{matrix.name}{which.nonzero()[0].tolist()}"


def _extent(which: torch.Tensor, what: str) -> str:
    """How many elements these are and, if not all, in which rows and columns."""
    count, words = int(which.sum()), []
    if count == 1:
        return ""
    if count == which.numel():
        return f" All elements are {what}."
    names = ("rows", "columns") if which.dim() == 2 else ("places",)
    for name, own, size in zip(names, which.nonzero().T, which.shape, strict=True):
        first, last = int(own.min()), int(own.max())
        if last - first + 1 < size:
            words.append(f"{name} {first} to {last}" if first < last else f"{name[:-1]} {first}")
    where = f", in {' and '.join(words)}" if words else ""
    return f" {count} of {which.numel()} elements are {what}{where}."
