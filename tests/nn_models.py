"""Small models of the forms that `tritemm.convert` knows, and data whose products are exact."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tritemm.problem import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
#: SiLU of a multiple of this is 0, or its argument, in fp32; and its slope 0, 1 or a half.
STEEP = 128


def integers(*shape, dtype=torch.float32):
    return torch.randint(-1, 2, shape, device=DEVICE).to(dtype)


@torch.no_grad()
def with_integers(model):
    """The model, on the device, with integers in all its parameters: all that it computes is exact.

    The arguments of the activations of its MLPs are multiples of `STEEP`.
    """
    model.to(DEVICE)
    for name, parameter in model.named_parameters():
        scale = STEEP if "gate_proj" in name or "c_fc" in name else 1
        parameter.copy_(scale * integers(*parameter.shape, dtype=parameter.dtype))
    return model


class Operators(TorchDispatchMode):
    """The names of tritemm's operators that were called, and the activations of their products."""

    def __init__(self):
        super().__init__()
        self.names, self.activations = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "tritemm":
            self.names.append(func.overloadpacket.__name__)
            given = zip(func._schema.arguments, args, strict=False)
            self.activations += [
                value for key, value in given if key.name == "activation" and value
            ]
        return func(*args, **(kwargs or {}))


class Quantized(torch.Tensor):
    """A weight that knows what torch's linear means for it, as quantizers make them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, bias = args
            return F.linear(x, 2 * weight.as_subclass(torch.Tensor), bias)
        return super().__torch_function__(func, types, args, kwargs)


def by_name_alone(name, function):
    """A module whose class is called like an activation, and computes nearly that."""

    def forward(self, x):
        return function(x) + 1e-3

    return type(name, (nn.Module,), {"forward": forward})()


class Conv1D(nn.Module):
    """As transformers has it: the weight is stored [in, out]."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        size = *x.size()[:-1], self.nf
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class GPT2MLP(nn.Module):
    """As transformers has it."""

    def __init__(self, hidden=16, intermediate=24, act=None, layer=Conv1D):
        super().__init__()
        sizes = (hidden, intermediate), (intermediate, hidden)
        self.c_fc, self.c_proj = (layer(*(s[::-1] if layer is Conv1D else s)) for s in sizes)
        self.act = act or nn.GELU("tanh")
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden_states):
        hidden_states = self.c_fc(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.c_proj(hidden_states)
        return self.dropout(hidden_states)


class LlamaMLP(nn.Module):
    """As transformers has it."""

    def __init__(self, hidden=16, intermediate=24, bias=False, act_fn=None, dtype=None):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias, dtype=dtype)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias, dtype=dtype)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias, dtype=dtype)
        self.act_fn = act_fn or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Tied(nn.Module):
    """An embedding whose weight is the head's too, and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 8)
        self.second = self.first
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.second(self.first(self.embedding(ids)).relu()))
