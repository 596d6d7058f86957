"""An epilogue by torch's own operators: what kernels must compute, and what ends their product
where none of them does.
"""

from __future__ import annotations

import torch

from .epilogue import GATED


def after(argument, activation: str, residual, beta: float, out=None) -> torch.Tensor:
    """activation(argument) + beta * residual, in the type of `argument`; `out` if given.

    The one place where torch ends a product, so that all calls of a kind have the same bits.
    """
    if residual is None:
        if out is not None and activation in GATED:
            return torch.mul(*_pair(argument, activation), out=out)
        result = activated(argument, activation)
    else:
        done = activated(argument, activation)
        # A residual of no dimensions would have no say in the type that torch adds in.
        result = torch.add(done, residual.expand(done.shape), alpha=beta).to(argument.dtype)
    return result if out is None else out.copy_(result)


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """One of `ACTIVATIONS`, or of `GATED`, of `x`."""
    if activation in GATED:
        gate, up = _pair(x, activation)
        return gate * up
    functional = torch.nn.functional
    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    return getattr(functional, activation)(x) if activation else x


def _pair(x: torch.Tensor, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The two factors of a gated activation of `x`, whose first half of columns is the gate's."""
    gate, up = x.chunk(2, -1)
    return activated(gate, GATED[activation]), up


def mirrored(c: torch.Tensor) -> torch.Tensor:
    """What lies on and below the diagonal of `c` [..., N, N], and its mirror above."""
    return c.tril() + c.tril(-1).mT
