"""The one operator boundary: what torch's dispatcher, vmap, compilers and counters see.

`tritemm::gemm` is activation(alpha * a @ b + bias) + beta * residual for matrices with broadcast
batch dimensions, operands of at least two dimensions. A plain product has `NOTHING` as its
epilogue. It carries its own derivatives, `derivatives.py`, however it is called. Checks that need
no data are in `api`; it trusts its arguments.
"""

from __future__ import annotations

import math

import torch
from torch.utils.flop_counter import register_flop_formula

from ..plan.kinds import in_parts, product
from ..problem import NOTHING, EpilogueInputs, result_shape
from ..runtime import fast_path, inductor
from ..runtime.operators import called_by_inductor, implement_out, implement_whole
from ..runtime.torch_private import profiling
from . import distributed
from .derivatives import rule
from .schema import GEMM, GEMM_OUT, parted


def gemm(a, b, then: EpilogueInputs, options: tuple, out=None) -> torch.Tensor:
    """Differentiable product of `a` [..., M, K] and `b` [..., K, N] with its epilogue.

    It is written to `out`, of its shape and type, if given. `options`: kernel, precision,
    accumulator and result type, as the operator takes them.
    """
    if fast_path.unwatched(a, b, then.tensors, out):
        made = then if then is NOTHING else EpilogueInputs.made(a, b, *then)
        return product(a, b, out, options, made)
    distributed.on_demand()
    if out is None:
        return GEMM(a, b, *then, *options)
    GEMM_OUT(a, b, *then, *options[:-1], out=out)
    return out


def _gemm(a, b, *args, out=None):
    then, options = parted(args)
    return product(a, b, out, options, EpilogueInputs.made(a, b, *then))


def _fake(a, b, *args):
    inductor.lower(GEMM, "gemm_into", optional=2)
    then, options = parted(args)
    return a.new_empty(result_shape(a, b, then.activation), dtype=options[-1])


def _gemm_into(a, b, *rest, out):
    """What code compiled by Inductor calls instead of `gemm`, to write to memory it has planned."""
    given, options = rest[:-3], (*rest[-3:], out.dtype)
    # With tensors it is longer, and they can't be compared.
    plain = len(given) == len(_PLAIN) and given == _PLAIN
    then = NOTHING if plain else _given(a, b, *given)
    if profiling() or not fast_path.AVAILABLE:
        GEMM_OUT(a, b, *then, *options[:-1], out=out)
        return
    key, addresses = fast_path.kind_of(a, b, out, options, then)
    if not fast_path.write(fast_path.KNOWN.get(key), addresses):
        product(a, b, out, options, then)


#: What Inductor's code passes to `_gemm_into` for `NOTHING`.
_PLAIN = (False, False, *NOTHING[2:])


def _given(a, b, *args) -> EpilogueInputs:
    """The epilogue from the tensors that exist, whether each does, and the other arguments."""
    count = len(args) - len(NOTHING)
    if not 0 <= count <= 2:
        raise RuntimeError(
            "this code was compiled with another version of tritemm, whose operator took other "
            "arguments, and cached. Delete torch's compile caches (TORCHINDUCTOR_CACHE_DIR)"
        )
    tensors, (biased, added, *more) = args[:count], args[count:]
    bias, residual = tensors[0] if biased else None, tensors[-1] if added else None
    return EpilogueInputs.made(a, b, bias, residual, *more)


def _vmap(info, in_dims, a, b, *args):
    """A vmapped dimension becomes one more batch dimension, in front.

    torch computes the epilogue: a bias may differ between products of a batch.
    """
    then, options = parted(args)
    tensors = a, b, then.bias, then.residual if then.beta else None
    dims = [None if t is None else dim for t, dim in zip(tensors, in_dims, strict=False)]
    ranks = [t.dim() - (dim is not None) for t, dim in zip((a, b), dims, strict=False)]
    a, b, bias, residual = (
        _batch_first(t, dim, max(ranks)) for t, dim in zip(tensors, dims, strict=True)
    )
    then = then._replace(bias=bias, residual=residual)
    plain = then._replace(beta=1.0) == NOTHING if bias is residual is None else False

    def multiply(a, b, options):
        return GEMM(a, b, *NOTHING, *options)

    result = multiply(a, b, options) if plain else in_parts(a, b, options, then, multiply)
    return result, None if dims == [None] * len(dims) else 0


def _batch_first(t, dim, rank):
    if dim is None:
        return t
    t = t.movedim(dim, 0)
    return t.reshape(t.shape[0], *(1,) * (rank + 1 - t.dim()), *t.shape[1:])


implement_whole(GEMM, _gemm, _fake, rule, _vmap)
implement_out(GEMM_OUT, _gemm)
called_by_inductor("gemm_into", _gemm_into)


@register_flop_formula([GEMM.overloadpacket, GEMM_OUT.overloadpacket])
def _flops(a_shape, b_shape, *args, out_shape=None, out=None) -> int:
    """Multiplications and additions, from the shapes of a, b and the result."""
    return 2 * a_shape[-1] * math.prod((*(out or out_shape)[:-1], b_shape[-1]))
