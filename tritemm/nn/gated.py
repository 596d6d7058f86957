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

from ..blas import linear
from ..runtime import inductor
from ..runtime.torch_private import below_autograd, tangent_of
from .derived import Derived
from .layers import PLAIN, Linear
from .packing import pack, packed, unpack

_LIBRARY = torch.library.Library("tritemm", "FRAGMENT")
_LIBRARY.define(
    "gated(Tensor input, Tensor gate, Tensor up, str activation, bool batch_invariant, "
    "str? precision) -> Tensor"
)
_GATED = torch.ops.tritemm.gated.default
#: What each gated activation does to the gate.
_ON_THE_GATE = {"swiglu": F.silu, "geglu": F.gelu}


class GatedMLP(Derived):
    """The forward of a class of the form down_proj(act_fn(gate_proj(x)) * up_proj(x)).

    Shapes: as the class's own forward, which runs wherever this one doesn't: while a gradient is
    recorded, in training, under autocast, where a child has hooks or was exchanged, and for a call
    with other arguments.
    """

    #: "swiglu" or "geglu".
    gating: str
    #: Of the activation that `gating` stands for.
    activation_type: type

    def forward(self, *args, **kwargs):
        if len(args) != 1 or kwargs or not self._is_one_product(args[0]):
            return super().forward(*args, **kwargs)
        gate, up = self.gate_proj, self.up_proj
        options = self.gating, gate.batch_invariant, gate.precision
        return self.down_proj(_GATED(args[0], gate.weight, up.weight, *options))

    def _is_one_product(self, x: torch.Tensor) -> bool:
        gate, up, act = self.gate_proj, self.up_proj, self.act_fn
        if self.training or type(act) is not self.activation_type or _hooked(act):
            return False
        if type(gate) is not Linear or type(up) is not Linear or _hooked(gate) or _hooked(up):
            return False
        if gate.batch_invariant != up.batch_invariant or gate.precision != up.precision:
            return False
        tensors = x, gate.weight, up.weight
        if any(type(t) not in PLAIN for t in tensors):
            return False
        if gate.bias is not None or up.bias is not None or gate.activation or up.activation:
            return False
        if torch.is_autocast_enabled(x.device.type):
            return False
        return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))

    def pack(self) -> None:
        """Put the weights of gate and up into one storage, if they can be."""
        pack(self.gate_proj.weight, self.up_proj.weight)

    def unpack(self) -> None:
        """Give each of the two weights a storage of its own."""
        unpack(self.gate_proj.weight, self.up_proj.weight)

    def _apply(self, fn, recurse=True):
        """What `.to()` and the like do to the weights, after which they are packed again."""
        super()._apply(fn, recurse)
        self._pack_if_linear()
        return self

    def __setstate__(self, state):
        super().__setstate__(state)
        self._pack_if_linear()

    def _pack_if_linear(self) -> None:
        """An adapter may stand in a projection's place, and have no weight."""
        if type(self.gate_proj) is type(self.up_proj) is Linear:
            self.pack()


def _hooked(module: object) -> bool:
    """Whether a call of the module is more than its class's forward."""
    if not isinstance(module, nn.Module):
        return False
    hooks = module._forward_hooks, module._forward_pre_hooks
    return any(len(each) > 0 for each in hooks) or "forward" in module.__dict__


def _gated(input, gate, up, activation, batch_invariant, precision, out=None):
    weight = packed(gate, up)
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
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if recorded or any(tangent_of(t) is not None for t in tensors):
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
    flops = 4 * input_shape[-1]
    for size in out_shape:
        flops *= size
    return flops
