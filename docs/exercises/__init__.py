"""Exercises of the tutorial: write a function, and have it checked against the project itself.

`python -m docs.exercises` lists them, `python -m docs.exercises RUNG` asks the question, and
`python -m docs.exercises RUNG FILE` checks the function `answer` in FILE. None needs a GPU.

An exercise is a module ex_RUNG. Its docstring is the question; `answer` is a solution;
`WRONG` are functions that a learner may write first, which must be told apart; and
`check(function)` raises `Wrong` with a sentence that says where the function and the kernels part.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tritemm.rungs import RUNGS


class Wrong(Exception):
    """A sentence on what a function returned and what it should have."""


def find(rung: str) -> ModuleType:
    """The exercise of a rung; ModuleNotFoundError if it has none."""
    return importlib.import_module(f"{__name__}.ex_{rung}")


def every() -> list[str]:
    """The rungs that have one, in the order of the ladder."""
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


def same(function: Callable, want: Any, **arguments: Any) -> None:
    """`Wrong` unless the function returns what is wanted for these arguments."""
    got = function(**arguments)
    if got != want:
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise Wrong(f"answer({said}) is {got!r}; it should be {want!r}.")
