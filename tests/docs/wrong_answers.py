"""Wrong answers to an exercise: its solution with one operator, operand or number changed.

An exercise's check must tell each from the right one.
"""

import ast
from collections.abc import Callable, Iterator

from docs import exercises

#: What is written in place of an operator, and of a function.
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitXor: ast.Add,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Eq: ast.NotEq,
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min"}
#: By rung, how many of its changed solutions are right as well, or for all that is asked: roofs of
#: shared memory that no ring meets, constants of a sum that is compared with others of its kind.
RIGHT = {
    "tiled": 1, "permuted": 1, "pipelined": 2, "warp_specialized": 1, "pingpong": 1, "split_k": 4,
    "gemv": 1,
}  # fmt: skip


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the node's place."""
    match node:
        case ast.BinOp(left, operator, right):
            yield from (left, right)
            if put := OPERATORS.get(type(operator)):
                yield ast.BinOp(left, put(), right)
        case ast.Compare(left, [operator, *others], compared):
            if put := OPERATORS.get(type(operator)):
                yield ast.Compare(left, [put(), *others], compared)
        case ast.BoolOp(_, values):
            yield from values
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.Call(ast.Name(name), arguments, keywords) if name in FUNCTIONS:
            yield ast.Call(ast.Name(FUNCTIONS[name], ast.Load()), arguments, keywords)
            if len(arguments) > 1:
                yield from arguments
        case ast.Constant(int(number)):
            yield ast.Constant(number + 1)


class Put(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def of(rung: str) -> Iterator[Callable]:
    """The functions that make the mistakes of a rung."""
    text = exercises.solution(rung)
    for place, node in enumerate(ast.walk(ast.parse(text))):
        for nth, _ in enumerate(changed(node)):
            tree = ast.parse(text)
            old = list(ast.walk(tree))[place]
            new = ast.fix_missing_locations(Put(old, list(changed(old))[nth]).visit(tree))
            names = dict(vars(exercises.find(rung)))
            exec(compile(new, rung, "exec"), names)
            yield names["answer"]
