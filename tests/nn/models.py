"""Small models whose products are exact, and Inductor's passes over them without its code."""

import copy
import functools
import io

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._functorch import config
from torch._inductor import compile_fx
from torch._inductor.virtualized import V
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE
from tests.torch import twins
from tritemm.nn.packing import packed

integers = functools.partial(twins.integers, bound=1)
#: SiLU of a multiple of this is 0, or its argument, in fp32; and its slope 0, 1 or a half.
STEEP = 128


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


def pair(model, **options):
    """The model with integers, in evaluation and converted; and torch's with the same."""
    model = with_integers(model).eval()
    twin = copy.deepcopy(model)
    tritemm.convert(model, **options)
    return model, twin


def together(*layers):
    """Whether the weights of the layers lie one behind the other, and their biases."""
    kinds = [[each.weight for each in layers], [each.bias for each in layers]]
    return all(packed(*kind) is not None for kind in kinds if kind[0] is not None)


def through_a_file(saved, map_location=None, **options):
    torch.save(saved, file := io.BytesIO(), **options)
    file.seek(0)
    return torch.load(file, map_location, weights_only=False)


def gradients(model, result):
    model.zero_grad()
    result.sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def same(one, other):
    """Whether the tensors of two dictionaries, or sequences, are equal, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and same(list(one.values()), list(other.values()))
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Passes:
    """A backend for `torch.compile`: Inductor's passes; the graphs after them are interpreted."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        with config.patch(enable_autograd_cache=False):
            return compile_fx.compile_fx(graph, inputs, inner_compile=self._keep)

    def _keep(self, graph, inputs, *, is_inference=False, **_):
        with V.set_fake_mode(torch._guards.detect_fake_mode(inputs)):
            compile_fx._recursive_post_grad_passes(graph, is_inference)
        self.graphs.append(graph)
        return make_boxed_func(graph.forward)

    def products(self, graph=-1):
        """The names of tritemm's operators in a graph, the last one unless told, in their order;
        that of a product with an activation is the activation's.
        """
        found = []
        for module in self.graphs[graph].modules():
            nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
            found += [n for n in nodes if getattr(n.target, "namespace", None) == "tritemm"]
        return [_name(node) for node in found]


def _name(node):
    given = zip(node.target._schema.arguments, node.args, strict=False)
    words = [value for key, value in given if key.name == "activation" and value]
    return words[0] if words else node.target.overloadpacket.__name__


def compiled(model, **options):
    """The compiled model, and the backend, which has its graphs."""
    torch._dynamo.reset()
    options = {"fullgraph": True, "dynamic": False, **options}
    return torch.compile(model, backend=(backend := Passes()), **options), backend


def assert_products(model, x, products, change=None, exact=True, **options):
    """Compiled, the converted model computes what torch's does, by these products.

    `options` are those of `convert`; `change` is made to both after it. Returns both.
    """
    model, twin = pair(model, **options)
    if change is not None:
        change(model), change(twin)
    run, backend = compiled(model)
    close = {"rtol": 0, "atol": 0} if exact else {}
    for _ in range(2):
        torch.testing.assert_close(run(x.clone()), twin(x.clone()), **close)
    assert backend.products() == products
    return model, twin


class Quantized(torch.Tensor):
    """A weight that knows what torch's linear means for it, as quantizers make them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, bias = (each.as_subclass(torch.Tensor) for each in args)
            return F.linear(x, 2 * weight, bias)
        return super().__torch_function__(func, types, args, kwargs)


class Dispatching(torch.Tensor):
    """A weight that knows what torch's operators mean for it, three of them, and has no memory."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return cls(func(args[0].inner))
        if func is not torch.ops.aten.addmm.default:
            raise NotImplementedError(func)
        bias, x, weight = args
        return func(bias, x, 2 * weight.inner)


def conv1d(nf, nx):
    """Transformers' layer, whose weight is [in, out]."""
    return pytest.importorskip("transformers.pytorch_utils").Conv1D(nf, nx)


class MLP(nn.Module):
    """As GPT-2 has it in transformers."""

    def __init__(self, act=None, hidden=16, intermediate=24):
        super().__init__()
        self.c_fc = nn.Linear(hidden, intermediate)
        self.act = act or nn.GELU("tanh")
        self.c_proj = nn.Linear(intermediate, hidden)

    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class LlamaMLP(nn.Module):
    """As transformers has it."""

    def __init__(self, hidden=16, intermediate=24, bias=False, dtype=None):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias, dtype=dtype)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias, dtype=dtype)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias, dtype=dtype)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """As transformers has it, with sums in place of the softmax: exact for integers."""

    def __init__(self, bias=False):
        super().__init__()
        self.q_proj = nn.Linear(16, 16, bias=bias)
        self.k_proj = nn.Linear(16, 8, bias=bias)
        self.v_proj = nn.Linear(16, 8, bias=bias)
        self.o_proj = nn.Linear(16, 16, bias=bias)

    @property
    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj

    def forward(self, hidden_states, others=None):
        others = hidden_states if others is None else others
        heads = [*hidden_states.shape[:-1], -1, 8]
        q = self.q_proj(hidden_states).view(heads).transpose(1, 2)
        k = self.k_proj(others).view(-1, 1, others.shape[1], 8)
        v = self.v_proj(others).view(-1).view(-1, 1, others.shape[1], 8)
        mixed = (q @ k.mT) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Parts(Attention):
    """What its three layers give, called in an order that is not that of their weights."""

    def forward(self, x):
        v, k, q = (layer(x) for layer in reversed(self.projections))
        return q, k, v


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
