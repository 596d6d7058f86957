"""How a kernel runs a problem: a config, and its forms as fields and as text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from .problem import Problem


@dataclasses.dataclass(frozen=True)
class Config:
    """Tile sizes in elements, warps per program, shared-memory stages, raster order, and more.

    `SPLIT_K` programs share one tile's K; the programs of a `CLUSTER` share the loads of an
    operand's tiles. `PARTS` cuts K at multiples of 256 elements, whatever the tile, and adds the
    parts' sums in order: each of `SPLIT_K` programs computes one part, or one program all.
    `SWAP` computes C.T = B.T @ A.T, so that a small M is on the side that may be small, or tiles
    fit better; `PACK` names the operands ("a", "b" or both) that are copied first to be read
    faster. Tile sizes are those of the product after swapping. `SHARED` is the layout of tiles in
    shared memory if the rung offers a choice: plain, padded or permuted.
    """

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    num_warps: int = 4
    num_stages: int = 1
    ORDER: str = "linear"
    GROUP_M: int = 16
    SPLIT_K: int = 1
    CLUSTER: int = 1
    PARTS: int = 1
    SWAP: bool = False
    PACK: str = ""
    SHARED: str = ""

    def __hash__(self) -> int:
        return hash(self.numbers)  # cached

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        told = [f"{name}={value!r}" for name, value in changed(self).items()]
        return f"Config({', '.join(told)})"

    def __str__(self) -> str:
        order = f"{self.ORDER} {self.GROUP_M}" if self.ORDER == "grouped" else self.ORDER
        warps = f"{self.num_warps} warp{'s' * (self.num_warps > 1)}"
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        split = f", K split in {self.SPLIT_K}" if self.SPLIT_K > 1 else ""
        split += f", K in {self.PARTS} fixed parts" if self.PARTS > 1 else ""
        cluster = f", clusters of {self.CLUSTER}" if self.CLUSTER > 1 else ""
        swap = ", operands swapped" if self.SWAP else ""
        pack = f", {' and '.join(self.PACK)} packed" if self.PACK else ""
        shared = f", {self.SHARED} shared memory" if self.SHARED else ""
        tile = f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K}"
        return f"{tile}, {warps}, {stages}, {order} order{split}{cluster}{swap}{pack}{shared}"

    def view(self, problem: Problem) -> Problem:
        """The problem that the kernel sees: packed, then swapped."""
        problem = problem.packed(self.PACK)
        return problem.transposed() if self.SWAP else problem

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """What the predicted time depends on, in the order of the fields.

        These are all fields except the raster order, SWAP, PACK and SHARED.
        """
        tile = self.BLOCK_M, self.BLOCK_N, self.BLOCK_K, self.num_warps, self.num_stages
        return (*tile, self.SPLIT_K, self.CLUSTER, self.PARTS)

    def tiles(self, problem: Problem) -> int:
        """Output tiles of the whole problem that the kernel sees, all batches together."""
        return problem.space.tiles(self.BLOCK_M, self.BLOCK_N)

    def units(self, problem: Problem) -> int:
        """Output tiles, times SPLIT_K if K is split."""
        return self.tiles(problem) * self.SPLIT_K


#: The fields of a config and their defaults; None: no default; a field itself is never None.
_FIELDS = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Config)
}
#: The types as which fields are parsed.
_KIND: dict[str, Callable[[str], Any]] = dict.fromkeys(_FIELDS, int)
_KIND |= dict.fromkeys(("ORDER", "PACK", "SHARED"), str)
_KIND["SWAP"] = "True".__eq__
#: The values of fields that are words.
_WORDS = {
    "ORDER": ("linear", "serpentine", "grouped"),
    "PACK": ("", "a", "b", "ab"),
    "SHARED": ("", "plain", "padded", "permuted"),
}


def parse(text: str) -> Config:
    """The config of a text such as "BLOCK_M=128,BLOCK_N=256": fields by name."""
    pairs = (field.split("=") for field in text.split(","))
    return Config(**{name: _KIND[name](value) for name, value in pairs})


def changed(config: Config) -> dict:
    """The fields of `config` that have no default or differ from it."""
    # Under torch.compile a number that has changed between calls is a symbol, until int asks.
    values = {n: int(v) if _KIND[n] is int else v for n, v in _values(config).items()}
    return {name: value for name, value in values.items() if value != _FIELDS[name]}


def _values(config: Config) -> dict:
    """All fields; `dataclasses.asdict` copies each, which some torch.compile can't trace."""
    return {name: getattr(config, name) for name in _FIELDS}


def config_of(config: Config | Mapping) -> Config:
    """A config from its fields; ValueError with the limit if a field is unknown or wrong."""
    if isinstance(config, Config):
        values = _values(config)
    elif isinstance(config, Mapping):
        values = dict(config)
    else:
        raise ValueError(
            f"config= is a tritemm Config or a mapping of its fields, not {type(config).__name__}"
        )
    unknown = [name for name in values if name not in _FIELDS]
    if unknown:
        raise ValueError(f"config has no field {unknown[0]!r}; its fields are {', '.join(_FIELDS)}")
    for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"):
        if name not in values:
            raise ValueError(f"config needs {name}")
    for name, value in values.items():
        _check_field(name, value)
    return Config(**values)


def _check_field(name: str, value) -> None:
    if name in _WORDS:
        if value not in _WORDS[name]:
            words = ", ".join(map(repr, _WORDS[name]))
            raise ValueError(f"config: {name}={value!r}; one of {words}")
    elif name == "SWAP":
        if not isinstance(value, bool):
            raise ValueError(f"config: SWAP={value!r}; it must be True or False")
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config: {name}={value!r}; it must be a whole number, 1 or more")
