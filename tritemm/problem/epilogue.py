"""What happens to a product's accumulator before C is stored; without the values involved."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import torch

from .matrix import Matrix

#: Functions applied to each element of C: relu(x), gelu(x) by the error function or by tanh, and
#: silu(x) = x / (1 + exp(-x)); "" for none.
Plain = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: tuple[str, ...] = ("", *get_args(Plain))
#: For a pair of columns (gate, up): activation(gate) * up. The first half of a product's columns is
#: the gate's; C has half as many columns.
Gated = Literal["swiglu", "geglu"]
GATED: dict[str, str] = dict(zip(get_args(Gated), ("silu", "gelu"), strict=True))
#: The gate's activation -> the pair's.
GATES: dict[str, Any] = {plain: gated for gated, plain in GATED.items()}
#: Values of `activation=`.
Activation = Literal[Plain, Gated]


@dataclasses.dataclass(frozen=True)
class EpilogueSpec:
    """What C gets from the accumulator: activation(alpha * accumulator + bias) + beta * residual.

    `activation` is one of `ACTIVATIONS`, or of `GATED`. `alpha` and `beta` say whether there is
    such a factor; each launch gets its value. The bias is contiguous, with one element of type
    `bias` for each row ("m") or column ("n") of the product; `along` says which. The residual has
    C's size. If C is `symmetric`, the part above its diagonal mirrors the part below.

    For residues, whose moduli are the batch's outer dimension, "residue" stores the accumulator
    modulo the one for its index along the "batch".
    """

    activation: str = ""
    alpha: bool = False
    beta: bool = False
    bias: torch.dtype | None = None
    along: str = "n"
    residual: Matrix | None = None
    symmetric: bool = False

    @property
    def per_column(self) -> int:
        """Columns of the product per column of C: two if a gate multiplies the other half.

        Rows, if C is transposed.
        """
        return 2 if self.activation in GATED else 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """The kernels' names for the inputs that exist, in the order of a launch."""
        there = {
            "bias_ptr": self.bias, "residual_ptr": self.residual,
            "alpha": self.alpha, "beta": self.beta,
        }  # fmt: skip
        return tuple(name for name, has in there.items() if has)

    def transposed(self) -> EpilogueSpec:
        """That of C.T."""
        return dataclasses.replace(
            self,
            along={"n": "m", "m": "n"}.get(self.along, self.along),
            residual=self.residual and self.residual.transposed(),
        )

    def __str__(self) -> str:
        words = ["alpha"] if self.alpha else []
        words += ["bias"] if self.bias else []
        words += [self.activation] if self.activation else []
        if self.residual:
            words.append("residual x beta" if self.beta else "residual")
        words += ["symmetric"] if self.symmetric else []
        return ", ".join(words)


#: No epilogue.
PLAIN = EpilogueSpec()
