"""Which rungs of the two ladders are the same design: what their headers' Mirrors lines name.

A name is that of a competitor: `permuted[2]` is a rung in its third config, `permuted` in its
first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tritemm.spec import Kernel


def named(kernel: Kernel, others: Sequence[Kernel]) -> tuple[str, ...]:
    """The names of `others` that stand in the kernel's Mirrors line, in its order.

    Example:
        named(tiled, cuda_rungs)  # ("wmma_base", "mma_base"), of "Mirrors  wmma_base, mma_base"
    """
    known = {other.name for other in others}
    words = re.findall(r"\w+(?:\[\d+\])?", kernel.header.get("Mirrors", ""))
    return tuple(dict.fromkeys(word for word in words if rung_of(word) in known))


def rung_of(name: str) -> str:
    """The rung's name in a competitor's."""
    return name.partition("[")[0]


def twins(kernel: Kernel, others: Sequence[Kernel]) -> tuple[str, ...]:
    """The rungs of the other ladder that `kernel` names, then those that name `kernel`."""
    mine = named(kernel, others)
    rungs = set(map(rung_of, mine))
    back = [o.name for o in others if o.name not in rungs and named(o, [kernel])]
    return (*mine, *back)


def adds_to(kernel: Kernel, ladder: Sequence[Kernel]) -> Kernel | None:
    """The rung of its own ladder that the kernel's header starts from: `Adds to  mma_base: ...`."""
    word = kernel.header.get("Adds to", "").partition(":")[0].strip()
    return next((rung for rung in ladder if rung.name == word), None)


def rivals(kernel: Kernel, ladder: Sequence[Kernel], others: Sequence[Kernel]) -> tuple[str, ...]:
    """The kernel's twins; if none is built, those of the rung that it adds to, and so on down."""
    while not (found := twins(kernel, others)):
        kernel = adds_to(kernel, ladder)
        if kernel is None:
            return ()
    return found
