"""A gated MLP whose gate and up projections are one product, where nothing forbids it.

`tritemm::gated` is one operator so that code that was compiled asks at each run whether the two
weights lie together; a choice made while it was traced could be out of date. It means the two
products and what follows them, wherever the weights lie. One product rounds once where the two
round three times more, so it is taken in evaluation alone: in training, a pass without a gradient
(as of reentrant checkpointing) has the same bits as the one with.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from .. import ops
from ..blas import linear
from ..runtime import fast_path, inductor
from ..runtime.fast_path import PLAIN
from ..runtime.torch_private import below_autograd, compute_requires_grad, has_tangent, watched
from .activations import Known
from .derived import hooked
from .layers import Linear
from .packing import packed
from .projections import Packed, alike, apart, fits, traced

_LIBRARY = torch.library.Library("tritemm", "FRAGMENT")
_LIBRARY.define(
    "gated(Tensor input, Tensor gate, Tensor up, str activation, bool batch_invariant, "
    "str? precision) -> Tensor"
)
_GATED = torch.ops.tritemm.gated.default
#: What each gated activation does to the gate.
_ON_THE_GATE = {"swiglu": F.silu, "geglu": F.gelu}


class GatedMLP(Packed):
    """The forward of a class of the form down_proj(act_fn(gate_proj(x)) * up_proj(x)).

    Shapes: as the class's own forward, which runs wherever this one doesn't: under autocast, where
    a child has hooks or was exchanged, and for a call with other arguments. While a gradient is
    recorded, and in training, it runs too, but in compiled code the two products are still one.
    """

    #: "swiglu" or "geglu". Of the class, as the next, for an instance that `convert` didn't make.
    _tritemm_gating: str | None = None
    #: The activation that it stands for.
    _tritemm_act_fn: Known | None = None

    def together(self) -> tuple[nn.Module, ...]:
        return getattr(self, "gate_proj", None), getattr(self, "up_proj", None)

    def forward(self, *args, **kwargs):
        if len(args) != 1 or kwargs:
            return super().forward(*args, **kwargs)
        x, gate, up = args[0], self.gate_proj, self.up_proj
        if type(gate) is not Linear or type(up) is not Linear:
            return super().forward(x)
        tensors = x, gate.weight, up.weight
        if not self._is_known(gate, up, tensors):
            return super().forward(x)
        if not self.training and not compute_requires_grad(*tensors):
            return self.down_proj(
                product(*tensors, self._tritemm_gating, gate.batch_invariant, gate.precision)
            )
        layers = gate, up
        if traced() and alike(layers) and fits(layers, x):
            of_gate, of_up = apart(layers, x)
            return self.down_proj(self.act_fn(of_gate) * of_up)
        return super().forward(x)

    def _is_known(self, gate: Linear, up: Linear, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether the class's own forward would do what it did when it was converted.

        `tensors` are its input and the two weights.
        """
        act = self.act_fn
        if self._tritemm_act_fn is None or not self._tritemm_act_fn.is_still(act) or hooked(act):
            return False
        if hooked(gate) or hooked(up) or watched() or gate.activation or up.activation:
            return False
        if gate.batch_invariant != up.batch_invariant or gate.precision != up.precision:
            return False
        if gate.bias is not None or up.bias is not None:
            return False
        for tensor in tensors:
            if type(tensor) not in PLAIN:
                return False
        return not torch.is_autocast_enabled(tensors[0].device.type)


def product(input, gate, up, *options) -> torch.Tensor:
    """`tritemm::gated`; past torch's dispatcher where it would only call the operator."""
    if fast_path.available() and fast_path.usual(input, gate, None) and fast_path.plain(up):
        return _gated(input, gate, up, *options)
    return _GATED(input, gate, up, *options)


def _gated(input, gate, up, activation, batch_invariant, precision, out=None):
    weight = packed(gate, up) if gate.shape == up.shape else None
    if weight is None:
        result = _two_products(input, gate, up, activation, batch_invariant, precision)
        return result if out is None else out.copy_(result)
    options = {"batch_invariant": batch_invariant, "precision": precision}
    return linear(input, weight, activation=activation, out=out, **options)


def _two_products(input, gate, up, activation, batch_invariant, precision):
    """What the operator means, of differentiable parts."""
    options = {"batch_invariant": batch_invariant, "precision": precision}
    gates = _ON_THE_GATE[activation](linear(input, gate, **options))
    return gates * linear(input, up, **options)


def _gated_autograd(keys, input, gate, up, *options):
    tensors = input, gate, up
    if compute_requires_grad(*tensors) or has_tangent(*tensors):
        return _two_products(*tensors, *options)
    return below_autograd(_GATED, keys, *tensors, *options)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("gated", _gated, _key)
_LIBRARY.impl("gated", _gated_autograd, "Autograd", with_keyset=True)
_LIBRARY.impl("gated", _two_products, "FuncTorchBatchedDecomposition")  # vmap: as its parts


@torch.library.register_fake("tritemm::gated", lib=_LIBRARY)
def _gated_fake(input, gate, up, activation, batch_invariant, precision):
    inductor.lower(_GATED, "torch.ops.tritemm.gated_into", tensors=3)
    return input.new_empty((*input.shape[:-1], gate.shape[0]))


#: What code compiled by Inductor calls in place of the operator, into memory that it has planned.
#: By this name, because generated code imports torch and is kept between processes.
torch.ops.tritemm.gated_into = _gated


@register_flop_formula(torch.ops.tritemm.gated)
def _gated_flops(input_shape, gate_shape, *args, out_shape=None, **kwargs) -> int:
    return 2 * ops.flops(input_shape, out_shape)
