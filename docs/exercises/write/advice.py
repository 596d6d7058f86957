"""What an error of Triton's means for the line of the file at which it was raised."""

import ast
import dataclasses
import functools
import itertools
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@functools.cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text())


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a file, by its number."""

    file: str
    number: int

    def truth(self) -> str:
        """Why a block can't be a truth value here."""
        for node in self._nodes():
            if isinstance(node, ast.BoolOp):
                word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
                return (
                    f"`{word}` takes single truth values, and a block has many. Combine masks with "
                    f"`{sign}`, each comparison in parentheses."
                )
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return "`not` takes a single truth value, and a block has many: use `~` for a mask."
            if isinstance(node, ast.Compare) and len(node.ops) > 1:
                return (
                    "a chain of comparisons takes single truth values, and a block has many. "
                    "Combine two comparisons with `&`, each in parentheses."
                )
        return (
            "a block can't be a condition, because its elements need not agree. Pass it to "
            "`tl.load` and `tl.store` as `mask`."
        )

    def statement(self) -> ast.stmt | None:
        """The innermost one."""
        found = [node for node in self._nodes() if isinstance(node, ast.stmt)]
        return max(found, key=lambda node: node.lineno, default=None)

    def _nodes(self) -> Iterator[ast.AST]:
        for node in ast.walk(_tree(self.file)):
            if getattr(node, "lineno", self.number + 1) <= self.number <= (node.end_lineno or 0):
                yield node

    def assigned(self, name: str) -> int | None:
        """The last line before this one at which a name is assigned."""
        lines = (
            node.lineno for node in ast.walk(_tree(self.file))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        )  # fmt: skip
        return max((each for each in lines if each < self.number), default=None)


def shapes(file: str, error: BaseException) -> str:
    """The shapes of the blocks in the file's call in which an error was raised; "" if none is."""
    places = [(frame, number) for frame, number in traceback.walk_tb(error.__traceback__)
              if frame.f_code.co_filename == file]  # fmt: skip
    if not places:
        return ""
    frame, number = places[-1]
    line = Line(file, number)
    if (statement := line.statement()) is None:
        return ""
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    dots = (call for call in calls if ast.unparse(call.func) == "tl.dot" and len(call.args) >= 2)
    if (dot := next(dots, None)) is not None:
        return _dot(dot, frame.f_locals, line)
    found = {ast.unparse(node): shape for node, shape in _blocks(statement, frame.f_locals)}
    said = " and ".join(f"`{name}` is {shape}" for name, shape in found.items())
    return f"There, {said}." if len({*map(str, found.values())}) > 1 else ""


def _dot(call: ast.Call, names: dict[str, Any], line: Line) -> str:
    (a, left), (b, right) = ((ast.unparse(node), _shape(node, names)) for node in call.args[:2])
    if left is None or right is None or left[-1] == right[0]:
        return ""
    said = [f"`tl.dot` got {a}, {left}, and {b}, {right}: the second block needs as many rows as "
            "the first has columns."]  # fmt: skip
    blocks = ["BLOCK_M", "BLOCK_N", "BLOCK_K"]
    m, n, k = (getattr(names.get(each), "value", names.get(each)) for each in blocks)
    for name, shape, want, words in (
        (a, left, [m, k], "[BLOCK_M, BLOCK_K]"), (b, right, [k, n], "[BLOCK_K, BLOCK_N]"),
    ):  # fmt: skip
        if None not in (m, n, k) and shape != want:
            at = line.assigned(name)
            said.append(f"{name} must be {words}, {want}" + (f": see line {at}." if at else "."))
    return " ".join(said)


def _blocks(statement: ast.stmt, names: dict[str, Any]) -> Iterator[tuple[ast.AST, list[int]]]:
    """The largest expressions of a statement's calls and operators that have a known shape."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.expr) and (shape := _shape(node, names)):
            yield node, shape
        else:
            todo += ast.iter_child_nodes(node)


def _shape(node: ast.AST, names: dict[str, Any]) -> list[int] | None:
    """The shape of an expression, [] of a number; None if it isn't known."""
    match node:
        case ast.Constant():
            return []
        case ast.Name(id=name):
            return _known(names.get(name))
        case ast.Attribute(value=value, attr="T"):
            shape = _shape(value, names)
            return shape and shape[::-1]
        case ast.Subscript(value=value, slice=ast.Tuple(elts=places)):
            return _indexed(_shape(value, names), places)
        case ast.BinOp(left=left, right=right):
            return _together(_shape(left, names), _shape(right, names))
        case ast.Compare(left=left, comparators=[right]):
            return _together(_shape(left, names), _shape(right, names))
    return None


def _known(value: Any) -> list[int] | None:
    if isinstance(value, int | float):
        return []
    shape = getattr(value, "shape", None)
    return None if shape is None else [int(getattr(size, "value", size)) for size in shape]


def _indexed(shape: list[int] | None, places: list[ast.expr]) -> list[int] | None:
    """With `None` among the places for a dimension of 1, and `:` for one of the block's."""
    own = iter(shape or ())
    sizes = [next(own, None) if isinstance(each, ast.Slice) else 1 for each in places]
    return None if shape is None or None in sizes else sizes


def _together(left: list[int] | None, right: list[int] | None) -> list[int] | None:
    """The shape of an operator's result; None if the two don't go together."""
    if left is None or right is None:
        return None
    pairs = [*itertools.zip_longest(reversed(left), reversed(right), fillvalue=1)][::-1]
    fits = all(1 in pair or pair[0] == pair[1] for pair in pairs)
    return [max(pair) for pair in pairs] if fits else None
