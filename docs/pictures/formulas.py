"""The project's index formulas as functions of plain integers, so that pictures can't differ.

`module` is a file of tritemm/kernels/device/ with Python's own operations in place of Triton's, and
`cuda` an expression of a CUDA source. Both run the text that the kernels are compiled from.
"""

import ast
import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "tritemm" / "kernels" / "device"
SOURCES = ROOT / "cuda_reference"
#: The files whose formulas others of them use.
PLAIN = ("raster", "scheduler", "stream_k", "mainloop", "cluster_mainloop")


@functools.cache
def module(name: str, program: int = 0, programs: int = 1) -> SimpleNamespace:
    """A file's functions and classes, in program `program` of `programs`.

    Of other files it has what is in one of `PLAIN`; all else is None.
    """
    tree = _Plain().visit(ast.parse((DEVICE / f"{name}.py").read_text()))
    names: dict[str, Any] = _language(program, programs)
    for node in [each for each in tree.body if isinstance(each, ast.ImportFrom)]:
        known = vars(module(node.module, program, programs)) if node.module in PLAIN else {}
        for alias in node.names:
            names.setdefault(alias.name, known.get(alias.name))
    tree.body = [each for each in tree.body if not isinstance(each, (ast.Import, ast.ImportFrom))]
    future = ast.parse("from __future__ import annotations").body
    tree.body = [*future, *tree.body]
    # `__name__` is what dataclasses ask for.
    names["__name__"] = __name__
    exec(compile(ast.fix_missing_locations(tree), f"{name}.py", "exec"), names)
    return SimpleNamespace(**names)


class _Plain(ast.NodeTransformer):
    """Integers have no type to be turned `.to`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        to = isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        return node.func.value if to else node


def shape(**words: Any) -> SimpleNamespace:
    """A kernel's SHAPE: of one whole C and a whole K, where `words` don't say otherwise."""
    whole = {
        "BATCHED": False, "TRIANGULAR": False, "SPLIT_K": 1, "PARTS": 1, "RING": 0, "SUMS": "whole",
    }  # fmt: skip
    return SimpleNamespace(**whole | words)


def _language(program: int, programs: int) -> dict[str, Any]:
    """What those files use of Triton."""

    def same(function: Any) -> Any:
        return function

    words = SimpleNamespace(
        cdiv=lambda a, b: -(-a // b), minimum=min, maximum=max,
        where=lambda condition, a, b: a if condition else b, cast=lambda value, dtype: value,
        assume=lambda condition: None, static_assert=lambda *condition: None,
        program_id=lambda axis: program, num_programs=lambda axis: programs,
        constexpr=int, int32=int, int64=int, static_range=range,
    )  # fmt: skip
    jit = SimpleNamespace(jit=same, constexpr_function=same)
    return {
        "tl": words,
        "gl": words,
        "gluon": jit,
        "triton": jit,
        "aggregate": dataclasses.dataclass,
    }


def cuda(file: str, before: str, after: str = ";") -> Callable[..., int]:
    """The integer expression between two texts of a file of cuda_reference/, as a function of its
    variables. Constants are the file's own and the headers'. The first text stands there once."""
    text = (SOURCES / file).read_text()
    if text.count(before) != 1:
        raise ValueError(f"{file} has {text.count(before)} times: {before}")
    words = text.partition(before)[2].partition(after)[0]
    code = compile(_python(words), file, "eval")

    def value(**variables: int) -> int:
        names = {name: variables.get(name) for name in code.co_names}
        for name in [name for name in names if name not in variables]:
            names[name] = constant(file, name)
        return eval(code, {"__builtins__": {}}, names)

    return value


@functools.cache
def constant(file: str, name: str) -> int:
    """A `constexpr int` of a file, or of the headers that it includes."""
    pattern = rf"constexpr int (?:\w+ = [^,;]+, )*{name} = ([^,;]+)[,;]"
    for each in _with_headers(file):
        if found := re.search(pattern, (SOURCES / each).read_text()):
            code = compile(_python(found[1]), each, "eval")
            return eval(code, {other: constant(file, other) for other in code.co_names})
    raise ValueError(f"{file} has no constant {name}")


def _with_headers(file: str) -> list[str]:
    """The file, and what it includes of include/, directly or not."""
    found = [file]
    for each in found:
        for name in re.findall(r'#include "(\w+\.cuh)"', (SOURCES / each).read_text()):
            if (header := f"include/{name}") not in found:
                found.append(header)
    return found


def _python(words: str) -> str:
    """An expression of C++ integers, none of which is negative."""
    words = re.sub(r"\((\w+) \? ([^:]+) : ([^)]+)\)", r"(\2 if \1 else \3)", words)
    return re.sub(r"\s+", " ", words.replace("/", "//")).strip()
