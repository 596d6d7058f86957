"""A caller's wishes for the choice, and their form as one word of the operator's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..arch.limits import order_why_not, programs_why_not
from ..arch.sm80 import MOST_WARPS
from ..dtypes import check_flag
from ..problem import Problem
from ..problem.config import Config, changed, config_of, parse
from ..rungs import RUNGS
from ..spec import Kernel

_INVARIANT = "batch_invariant"


@dataclasses.dataclass(frozen=True)
class Request:
    """A rung's name or "auto", a config for it, and whether rows must not depend on M."""

    kernel: str = "auto"
    config: Config | None = None
    batch_invariant: bool = False

    def __str__(self) -> str:
        """The word: tma, auto/batch_invariant or tma/BLOCK_M=128,BLOCK_N=256,..."""
        word = self.kernel
        if self.batch_invariant:
            word += f"/{_INVARIANT}"
        if self.config is not None:
            values = changed(self.config).items()
            word += "/" + ",".join([f"{name}={value}" for name, value in values])
        return word

    @staticmethod
    def parse(word: str) -> Request:
        """The request whose `str` is `word`."""
        kernel, *rest = word.split("/")
        fields = next((text for text in rest if "=" in text), None)
        return Request(kernel, parse(fields) if fields else None, _INVARIANT in rest)

    @staticmethod
    def of(kernel: str | Kernel, config: Config | Mapping | None, batch_invariant: bool) -> Request:
        """The request in matmul's arguments.

        Raises:
            TypeError: `kernel` is neither a name nor a rung, or `batch_invariant` no bool.
            ValueError: arguments that exclude each other, or a config that no rung can have.
        """
        kernel = _name_of(kernel)
        check_flag("batch_invariant", batch_invariant)
        if config is None:
            return Request(kernel, None, batch_invariant)
        if kernel == "auto":
            raise ValueError("config= is for one rung: name it with kernel=")
        if batch_invariant:
            raise ValueError("batch_invariant=True chooses the config itself: omit config=")
        return Request(kernel, config_of(config))


def word_of(
    kernel: str | Kernel, config: Config | Mapping | None = None, batch_invariant: bool = False
) -> str:
    """matmul's arguments as a word; errors as in `Request.of`. "auto" and names are unchanged."""
    if config is None and batch_invariant is False:
        # A compiled graph guards on all that is read here, before each of its calls.
        return kernel if isinstance(kernel, str) and kernel == "auto" else _name_of(kernel)
    return str(Request.of(kernel, config, batch_invariant))


def _name_of(kernel: str | Kernel) -> str:
    if isinstance(kernel, Kernel):
        return kernel.name
    if not isinstance(kernel, str):
        raise TypeError(
            'kernel= is "auto", the name of a rung of tritemm.ladder(), or a rung, '
            f"not {type(kernel).__name__}"
        )
    if "/" in kernel:  # in a word, "/" begins an option
        raise ValueError(f"no rung is called {kernel!r}; tritemm.ladder() has them all")
    return kernel


def for_gradients(word: str) -> str:
    """The word for the backward pass's products, given the forward pass's word.

    They are other problems, so rung and config aren't passed on; batch invariance is.
    """
    if "/" not in word:
        return "auto"
    return str(Request(batch_invariant=Request.parse(word).batch_invariant))


def refusal(rung: Kernel, view: Problem, config: Config) -> str | None:
    """Why `rung` can't run its view of a problem in `config`; or None."""
    return rung.why_not(view) or why_not(rung, view, config)


def why_not(kernel: Kernel, view: Problem, config: Config) -> str | None:
    """Why `kernel`, which can run `view`, can't run it in `config`, or None."""
    own = kernel.configs(view)
    if dataclasses.replace(config, SWAP=False, PACK="") in own:
        return None
    for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"):
        value = getattr(config, name)
        odd = value & (value - 1) and not kernel.limits.odd_tiles
        if odd and all(value != getattr(c, name) for c in own):
            return f"{name} is {value}; {_allowed(name, own)}"
    if config.num_warps > MOST_WARPS:
        return f"num_warps is {config.num_warps}; a program has at most {MOST_WARPS}"
    if reason := programs_why_not(config.units(view)) or order_why_not(view, config):
        return reason
    if config.SPLIT_K > 1 and not kernel.workspace and all(c.SPLIT_K == 1 for c in own):
        return f"SPLIT_K is {config.SPLIT_K}; this rung does not split K{_who_splits(view)}"
    if config.CLUSTER > 1 and all(c.CLUSTER == 1 for c in own):
        return f"CLUSTER is {config.CLUSTER}; this rung doesn't support clusters"
    if config.PARTS > 1 and not kernel.limits.fixed_parts:
        able = ", ".join(rung.name for rung in RUNGS if rung.limits.fixed_parts)
        return f"PARTS is {config.PARTS}; this rung doesn't cut K into fixed parts; {able} can"
    if config.SHARED and all(c.SHARED != config.SHARED for c in own):
        return f"SHARED is {config.SHARED!r}; this rung has a fixed layout"
    stage = (config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K * view.itemsize
    shared = stage * config.num_stages
    if config.num_stages > 1 and shared > view.device.shared:
        return (
            f"{config.num_stages} stages of {stage} bytes need {shared} bytes of shared memory; "
            f"{view.device.name} has {view.device.shared}. Use fewer stages or a smaller tile"
        )
    return kernel.config_why_not(view, config)


def _who_splits(view: Problem) -> str:
    able = (k for k in RUNGS if not k.why_not(view))
    names = [k.name for k in able if any(c.SPLIT_K > 1 for c in k.configs(view))]
    return f"; {', '.join(names)} can" if names else ""


def _allowed(name: str, own: Sequence[Config]) -> str:
    values = sorted({getattr(c, name) for c in own})
    more = [str(v) for v in values if v & (v - 1)]
    return "a power of two" + (f", or {' or '.join(more)}, is possible" if more else " is possible")
