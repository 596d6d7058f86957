"""What tests of torch's semantics share: whole numbers, and torch's functions in tritemm's words.

Sums of products of small integers are exact in every type: results are compared for equality.
"""

import functools
import types

import torch
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE
from tritemm.problem import GATED

ACTIVATIONS = {
    None: lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "geglu": lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}
#: Those that have as many columns as what they are given.
PLAIN = [name for name in ACTIVATIONS if name not in GATED]
#: Whether tensors, or sequences of them, have the same numbers and types; and strides.
equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0)
same = functools.partial(equal, check_stride=True)


def integers(*shape, dtype=torch.float32, bound=3):
    return torch.randint(-bound, bound + 1, shape, device=DEVICE).to(dtype)


def leaf(*shape, dtype=torch.float64):
    return integers(*shape, dtype=dtype).requires_grad_()


def linear(x, w, b=None, *, activation=None, residual=None):
    result = ACTIVATIONS[activation](F.linear(x, w, b))
    return result if residual is None else result + residual


#: A test calls the functions of this, and of tritemm.
TORCH = types.SimpleNamespace(
    matmul=torch.matmul, linear=linear, addmm=torch.addmm, baddbmm=torch.baddbmm, mv=torch.mv,
    einsum=torch.einsum,
)  # fmt: skip


def kept(call):
    """How many bytes autograd saves in a call."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.nbytes) or t, lambda t: t
    ):
        call()
    return sum(sizes)


def outcome(call):
    """What a call returned, or the type of what it raised."""
    try:
        return call()
    except Exception as error:
        return type(error)


def assert_same(call, *, routed=None, **settings):
    """`call()` gives what torch gives, to the bit; `routed` is what it then ran here."""
    want = outcome(call)
    with tritemm.enabled(**settings) as report:
        got = outcome(call)
    if routed is not None:
        assert report.ran == routed, report
    if isinstance(want, type):
        assert got is want
        return report
    assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
    assert torch.equal(got, want), (got, want)
    return report
