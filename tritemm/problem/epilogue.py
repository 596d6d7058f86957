"""What becomes of the sums of a product before C is stored."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import torch

from .matrix import Matrix

#: What may be done to each element of C: relu(x), gelu(x) by the error function or by tanh, and
#: silu(x) = x / (1 + exp(-x)); or nothing.
Plain = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: tuple[str, ...] = ("", *get_args(Plain))
#: Of a pair of columns (gate, up): activation(gate) * up. The first half of a product's columns are
#: the gate's; C has half as many.
Gated = Literal["swiglu", "geglu"]
GATED: dict[str, str] = dict(zip(get_args(Gated), ("silu", "gelu"), strict=True))
#: What `activation=` may be.
Activation = Literal[Plain, Gated]


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """What C gets of the sums: activation(alpha * sum + bias) + beta * residual.

    `activation` is one of `ACTIVATIONS`, or of `GATED`. The bias is contiguous, one element of
    `bias` for each row ("m") or column ("n") of the product: `along` says which. The residual is of
    C's size.
    """

    activation: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    bias: torch.dtype | None = None
    along: str = "n"
    residual: Matrix | None = None

    @property
    def gated(self) -> bool:
        """Whether C has a column, or if it is transposed a row, for two of the product's."""
        return self.activation in GATED

    def transposed(self) -> Epilogue:
        """That of C.T."""
        return dataclasses.replace(
            self,
            along="m" if self.along == "n" else "n",
            residual=self.residual and self.residual.transposed(),
        )

    def __str__(self) -> str:
        words = [f"alpha {self.alpha:g}"] if self.alpha != 1 else []
        words += ["bias"] if self.bias else []
        words += [self.activation] if self.activation else []
        if self.residual:
            words.append("residual" if self.beta == 1 else f"residual x {self.beta:g}")
        return ", ".join(words)


#: Of a product and no more.
PLAIN = Epilogue()


def factors(ending) -> dict[str, float]:
    """Of an `Epilogue`, or of what has its fields: the factors that a kernel is given, by name.

    One that is 1 is not there at all. What the others are is not compiled, and no part of a kind.
    """
    given = {} if ending.alpha == 1 else {"alpha": float(ending.alpha)}
    if ending.residual is not None and ending.beta != 1:
        given["beta"] = float(ending.beta)
    return given
