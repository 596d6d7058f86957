"""Exercises of the tutorial: write a function, and have it checked against the project itself.

`python -m docs.exercises` lists them, `python -m docs.exercises RUNG` asks the question, and
`python -m docs.exercises RUNG FILE` checks the function `answer` in FILE. None needs a GPU.

An exercise is a module ex_RUNG. Its docstring is the question; `answer` is a solution; and
`check(function)` raises `Wrong` with a sentence that says where the function and the kernels part.
It is given a function that `learners` made of the learner's own. `tests/docs/wrong_answers.py` has
some that it must tell apart.
"""

import importlib
import inspect
import numbers
import reprlib
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

#: A learner's function, as checks call it.
Answer = Callable[..., Any]


class Wrong(Exception):
    """A sentence on what a function returned and what it should have."""


def find(rung: str) -> ModuleType:
    """The exercise of a rung; ModuleNotFoundError if it has none."""
    return importlib.import_module(f"{__name__}.ex_{rung}")


def every() -> list[str]:
    """The rungs that have one, in the order of the ladder."""
    from tritemm.rungs import RUNGS  # takes seconds, which nothing else here needs

    there = {path.stem for path in Path(__file__).parent.glob("ex_*.py")}
    return [kernel.name for kernel in RUNGS if f"ex_{kernel.name}" in there]


def question(rung: str) -> str:
    return inspect.cleandoc(find(rung).__doc__)


def signature(rung: str) -> str:
    """`answer(M: int, N: int, K: int) -> int`."""
    return solution(rung).partition(":\n")[0].removeprefix("def ")


def solution(rung: str) -> str:
    """The source of the answer."""
    return textwrap.dedent(inspect.getsource(find(rung).answer)).rstrip()


def check(rung: str, function: Answer) -> None:
    """`Wrong` unless the function answers the rung's question."""
    exercise = find(rung)
    exercise.check(learners(function, exercise.answer))


def learners(function: Answer, solution: Callable) -> Answer:
    """The function as checks call it: with the solution's parameters, whatever its own are called.

    It returns what `settled` makes of the result, and raises nothing but `Wrong`.
    """
    wanted = inspect.signature(solution)
    names = list(wanted.parameters)
    try:
        inspect.signature(function).bind(*names)
    except TypeError:
        count = "one argument" if len(names) == 1 else f"{len(names)} arguments"
        raise Wrong(f"answer takes {count}: {', '.join(names)}.") from None
    except ValueError:  # of a builtin that doesn't tell
        pass

    def called(*given: Any, **named: Any) -> Any:
        arguments = wanted.bind(*given, **named).arguments
        try:
            return settled(function(*arguments.values()))
        except Wrong:
            raise
        except (Exception, SystemExit) as error:
            raise Wrong(f"{call(arguments)} raised {told(error)}.") from error

    return called


def call(arguments: Mapping[str, Any]) -> str:
    """`answer(M=16, N=32)`; long values are cut."""
    said = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in arguments.items())
    return f"answer({said})"


def told(error: BaseException) -> str:
    """An exception as a traceback's last line has it."""
    return f"{type(error).__name__}: {error}".rstrip(": .")


def settled(value: Any) -> Any:
    """Sequences as tuples, and whole numbers of every type as int, at every depth."""
    if hasattr(value, "tolist"):  # of numpy or torch
        value = value.tolist()
    if isinstance(value, tuple | list | range):
        return tuple(map(settled, value))
    if isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def same(function: Answer, want: Any, **arguments: Any) -> None:
    """`Wrong` unless the function returns what is wanted for these arguments."""
    got, want = function(**arguments), settled(want)
    if got != want:
        is_, be = repr(got), repr(want)
        if kind(got) != kind(want):
            is_, be = f"{is_}, {kind(got)}", f"{be}, {kind(want)}"
        raise Wrong(f"{call(arguments)} is {is_}; it should be {be}.")


def kind(value: Any) -> str:
    """The type of a `settled` value, in words."""
    if value is None:
        return "as of a function without `return`"
    if isinstance(value, tuple):
        return f"a sequence of {' and '.join(sorted({type(each).__name__ for each in value}))}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
