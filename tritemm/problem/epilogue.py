"""What becomes of the accumulator of a product before C is stored, but for its values."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

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
#: The gate's activation -> that of the pair.
GATES: dict[str, Any] = {plain: gated for gated, plain in GATED.items()}
#: What `activation=` may be.
Activation = Literal[Plain, Gated]


@dataclasses.dataclass(frozen=True)
class EpilogueSpec:
    """What C gets of the accumulator: activation(alpha * accumulator + bias) + beta * residual.

    `activation` is one of `ACTIVATIONS`, or of `GATED`. `alpha` and `beta` say whether there is
    such a factor: what it is, each launch is told. The bias is contiguous, one element of type
    `bias` for each row ("m") or column ("n") of the product: `along` says which. The residual is of
    C's size. If C is `symmetric`, what lies above its diagonal is what lies below.

    Of residues, whose moduli are the batch's outer dimension, C gets the "residue" of the
    accumulator by one that runs along the "batch".
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
        """Columns of the product that make one of C: two where a gate multiplies the other half.

        Of a C that is transposed, rows.
        """
        return 2 if self.activation in GATED else 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """What kernels call the inputs that there are, in the order in which a launch has them."""
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


#: Of a product and no more.
PLAIN = EpilogueSpec()
