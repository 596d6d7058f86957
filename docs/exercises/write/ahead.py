"""What is wrong with a file as far as its text tells, before a process starts to run it."""

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path

from . import functions


def refused(rung: str, file: str) -> str | None:
    """Why there is nothing to run, as a sentence; None if all of the kernels are there."""
    try:
        tree = ast.parse(Path(file).read_bytes(), file)
    except SyntaxError as error:
        return f"{f'Line {error.lineno}' if error.lineno else 'The file'}: {error.msg}."
    except ValueError as error:  # null bytes
        return f"The file: {error}."
    names = list(_names(tree))
    if "*" in names:
        return None
    return next((missing(name, names) for name in functions(rung) if name not in names), None)


def missing(name: str, names: list[str]) -> str:
    """That a file with these names doesn't have this one."""
    near = difflib.get_close_matches(name, names, 1)
    has = f" It has `{near[0]}`." if near else ""
    return f"The file has no function `{name}`: keep the names that it had at the start.{has}"


def _names(tree: ast.Module) -> Iterator[str]:
    """What the file defines, assigns or imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name
