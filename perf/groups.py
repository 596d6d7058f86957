"""Which experts tokens go to, and so the sizes of the groups that a product is of.

All follows from the numbers alone, by a generator whose stream numpy never changes: every
competitor, at any time, has the same groups.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib

import numpy

#: How even groups are. balanced: as equal as they can be; zipf: the expert in place r of a random
#: order is chosen in proportion to 1 / r; empty: half of the experts get nothing, and the others
#: are equally likely.
SIZES = BALANCED, ZIPF, EMPTY = ("balanced", "zipf", "empty")


@dataclasses.dataclass(frozen=True)
class Model:
    """The layers of experts of a model: gate and up are [2 x width, hidden], down the other way."""

    title: str
    experts: int
    top: int
    hidden: int
    width: int

    @property
    def slug(self) -> str:
        """Its name as options and ids have it: `qwen3-30b-a3b`."""
        return self.title.lower()


MODELS = {
    model.slug: model
    for model in (
        Model("Mixtral-8x7B", 8, 2, 4096, 14336),
        Model("Qwen3-30B-A3B", 128, 8, 2048, 768),
        Model("Qwen3-235B-A22B", 128, 8, 4096, 1536),
        Model("DeepSeek-V3", 256, 8, 7168, 2048),
        Model("gpt-oss-120b", 128, 4, 2880, 2880),
    )
}


@dataclasses.dataclass(frozen=True)
class Groups:
    """A group for each of `count` experts; a token is in `top` of them. `sizes`: of `SIZES`.

    `cut` is what they share out: rows of A and of C ("m"), each with a B of its own, or K ("k"),
    each with a C of its own.
    """

    cut: str
    count: int
    top: int
    sizes: str

    def ends(self, total: int) -> tuple[int, ...]:
        """Where each group ends, of so many rows, or terms of K, in all."""
        return _ends(self.count, self.top, self.sizes, total // self.top)

    def used(self, total: int) -> int:
        """How many groups are not empty."""
        return len({0, *self.ends(total)}) - 1

    def __str__(self) -> str:
        return f"{self.count} groups of {'rows' if self.cut == 'm' else 'K'}, {self.sizes}"


@functools.lru_cache(maxsize=64)
def _ends(experts: int, *how) -> tuple[int, ...]:
    sizes = numpy.bincount(routed(experts, *how).ravel(), minlength=experts)
    return tuple(int(end) for end in sizes.cumsum())


def routed(experts: int, top: int, sizes: str, tokens: int) -> numpy.ndarray:
    """[tokens, top]: the experts of each token, all different, drawn as `sizes` says."""
    if sizes == BALANCED:
        return numpy.arange(tokens * top).reshape(tokens, top) % experts
    seed = zlib.crc32(f"{experts} {top} {sizes} {tokens}".encode())
    random = numpy.random.RandomState(seed)
    known = random.permutation(experts)[: experts // 2 if sizes == EMPTY else None]
    rates = 1 / numpy.arange(1, len(known) + 1) if sizes == ZIPF else 1.0
    # The first to ring, of clocks that ring at these rates, are drawn one after another.
    times = random.standard_exponential((tokens, len(known))) / rates
    return known[times.argpartition(top - 1, axis=1)[:, :top]]
