"""Which rungs of the two ladders are the same design: what their headers' Mirrors lines name."""

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
    words = re.findall(r"\w+", kernel.header.get("Mirrors", ""))
    return tuple(dict.fromkeys(word for word in words if word in known))


def twins(kernel: Kernel, others: Sequence[Kernel]) -> tuple[str, ...]:
    """The rungs of the other ladder that `kernel` names, then those that name `kernel`."""
    back = [other.name for other in others if kernel.name in named(other, [kernel])]
    return tuple(dict.fromkeys((*named(kernel, others), *back)))


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
