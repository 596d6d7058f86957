"""What follows a product, in the words of a table: `bias gelu`, `residual`, `swiglu`, `accumulate`.

`perf.operands` makes tensors of the words, and `perf.linear_ways` has who computes them.
"""

from __future__ import annotations

import dataclasses

from tritemm.problem import ACTIVATIONS, GATED

BIAS, RESIDUAL, ACCUMULATE = "bias", "residual", "accumulate"
_KNOWN = (BIAS, *filter(None, ACTIVATIONS), *GATED, RESIDUAL, ACCUMULATE)


@dataclasses.dataclass(frozen=True)
class Ending:
    """activation(product + bias) + residual; or, to accumulate, what the output held + product.

    A gated activation is of a product whose first half of columns is the gate's: the result has
    half as many.
    """

    bias: bool = False
    activation: str = ""
    residual: bool = False
    accumulate: bool = False

    @staticmethod
    def parse(text: str | None) -> Ending:
        """Of words with blanks between them; none is no ending. Raises ValueError."""
        words = (text or "").split()
        for word in words:
            if word not in _KNOWN:
                raise ValueError(f"an ending is made of {', '.join(_KNOWN)}, not {word!r}")
        acts = [word for word in words if word in ACTIVATIONS or word in GATED]
        made = Ending(BIAS in words, "".join(acts[:1]), RESIDUAL in words, ACCUMULATE in words)
        if len(set(words)) < len(words) or len(acts) > 1:
            raise ValueError(f"an ending has each word once and one activation, not {text!r}")
        if (made.accumulate or made.gated) and len(words) > 1:
            raise ValueError(f"{ACCUMULATE} and gated activations stand alone, not in {text!r}")
        return made

    @property
    def gated(self) -> bool:
        return self.activation in GATED
