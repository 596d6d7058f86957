"""The two consumers of `pingpong`, run by a clock: their own source, with times for its calls.

`compute` of tritemm/kernels/k11_pingpong.py becomes a generator that hands out what takes time or
waits: products, stores and the barriers by which the consumers take turns. All else runs as it is.
"""

import ast
import functools
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

from docs.pictures.formulas import DEVICE

#: Calls that are handed out.
HANDED_OUT = (
    "mbarrier.wait", "mbarrier.arrive", "loop.multiply", "loop.multiply_tail", "out.store",
)  # fmt: skip


class _HandOut(ast.NodeTransformer):
    """`f(x, y)` becomes `yield ("f", x, y)`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name not in HANDED_OUT:
            return node
        return ast.Yield(ast.Tuple([ast.Constant(name), *node.args], ast.Load()))


@functools.cache
def role() -> Callable[..., Generator]:
    """A consumer's role, as a generator."""
    tree = ast.parse((DEVICE.parent / "k11_pingpong.py").read_text())
    (compute,) = (node for node in tree.body if getattr(node, "name", "") == "compute")
    compute.decorator_list = []
    for argument in compute.args.args:
        argument.annotation = None
    tree = ast.fix_missing_locations(ast.Module([_HandOut().visit(compute)], []))
    names = {"gl": SimpleNamespace(to_tensor=int), "gdc_wait": lambda: None}
    exec(compile(tree, "k11_pingpong.py", "exec"), names)
    return names["compute"]


def last_stored(tiles: int, multiply: int, store: int) -> int:
    """When one program's last tile is stored, if a tile takes so many cycles of each."""
    unit = SimpleNamespace(steps=1)
    work = SimpleNamespace(
        SHAPE=SimpleNamespace(GROUPS=""), first=lambda: 0, stride=lambda: 1, units=lambda: tiles,
        steps=lambda i: 1, unit=lambda i: unit,
    )  # fmt: skip
    turns = SimpleNamespace(index=int)
    out = SimpleNamespace(tail=lambda: None)
    consumers = [role()((work, None, out, turns), which) for which in (0, 1)]
    calls: list[Any] = [next(each, None) for each in consumers]
    clocks, completed = [0, 0], ([], [])  # when the phases of each turn's barrier were completed
    while any(calls):
        for which in (0, 1):
            while calls[which]:
                done = _done(calls[which], clocks[which], completed, multiply, store)
                if done is None:
                    break
                clocks[which], result = done
                try:
                    calls[which] = consumers[which].send(result)
                except StopIteration:
                    calls[which] = None
    return max(clocks)


def _done(call: Any, now: int, completed: Any, multiply: int, store: int) -> Any:
    """When a call is done and what it returns; None if it waits for what hasn't happened yet."""
    name, *given = call
    if name == "loop.multiply":
        return now + multiply, ()
    if name == "loop.multiply_tail":
        return now, (given[0], given[1] + given[2])
    if name == "out.store":
        return now + store, None
    if name == "mbarrier.arrive":
        completed[given[0]].append(now)
        return now, None
    phases, parity = completed[given[0]], given[1]
    # Turns alternate, so what is waited for is the last phase that is complete, if any has to be.
    if len(phases) % 2 == parity:
        return None
    return max(now, phases[-1] if phases else 0), None
