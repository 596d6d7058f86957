"""Sharding rules: how tritemm's operators split over the devices of a mesh, for torch's DTensor.

DTensor runs an operator on what each device holds, and asks rules for the placements of operands
for which that is correct, and for the result's placement. Without rules it refuses an operator.
Importing DTensor takes longer than importing tritemm, so nothing here does it before another module
has: `on_demand` checks that at each call that doesn't take the fast path.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ..machine import forks
from ..problem import GATED
from .schema import GEMM, GEMM_OUT, parted

_DTENSOR = "torch.distributed.tensor"
_lock = forks.lock()
_registered = False


def on_demand() -> None:
    """`register`, if DTensor has been imported: before that, no argument can be one."""
    if not is_dynamo_compiling() and not _registered and _DTENSOR in sys.modules:
        register()


def register() -> None:
    """Let `tritemm::gemm` and `gemm_out` take DTensors from here on.

    `tritemm`'s functions call this themselves. Only code that calls `torch.ops.tritemm` directly,
    and none of these functions, must call it. Calling it twice does no harm.

    The rules, for one dimension of the mesh; those of several combine freely:

    ==============  =================  =================  =====================
    sharded along   a [..., M, K]      b [..., K, N]      result [..., M, N]
    ==============  =================  =================  =====================
    nothing         Replicate()        Replicate()        Replicate()
    rows            Shard(-2)          Replicate()        Shard(-2)
    columns         Replicate()        Shard(-1)          Shard(-1)
    the sum         Shard(-1)          Shard(-2)          Partial()
    a batch         Shard(i)           Shard(i)           Shard(i)
    ==============  =================  =================  =====================

    The bias and the residual of `gemm` are sharded like the result, along the dimensions that they
    have. Its sum is split only without activation; bias and residual are then Partial() too. The
    columns of the operands of swiglu and geglu are not split. Operands with other placements are
    redistributed to the rule that moves least, as for torch's own operators.

    Raises:
        ImportError: torch was built without `torch.distributed`.

    >>> import tritemm
    >>> tritemm.distributed.register()
    """
    global _registered
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    with _lock:
        if _registered:
            return
        register_sharding(GEMM)(_gemm)
        # DTensor caches what follows from placements, shapes, and those other arguments that it
        # is told about. By itself it finds the types; these rules depend on the activation too.
        names = [argument.name for argument in GEMM._schema.arguments]
        told = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
        told[GEMM] = RuntimeSchemaInfo(names.index("activation"))
        torch.library.register_torch_dispatch(GEMM_OUT._name, DTensor, _into)
        _registered = True


def flat(x, y) -> tuple[torch.Tensor, torch.Tensor] | None:
    """`x` and `y`, [..., M, any], as [rows, any], with the rows of both in the same order.

    None if no order keeps each device's part contiguous: DTensor flattens nothing else.
    """
    shards = {
        (placement.dim, i)
        for t in (x, y)
        for i, placement in enumerate(getattr(t, "placements", ()))
        if hasattr(placement, "dim") and placement.dim < x.dim() - 1
    }
    dims = {dim for dim, _ in shards}
    if len(dims) > 1:
        return None
    for dim in dims:
        if x.shape[dim] % math.prod(x.device_mesh.size(i) for _, i in shards):
            return None
        x, y = x.movedim(dim, 0), y.movedim(dim, 0)
    # Not `flatten`, which batched gradients (`is_grads_batched`) don't support.
    rows = math.prod(x.shape[:-1])
    return x.reshape(rows, x.shape[-1]), y.reshape(rows, y.shape[-1])


def _into(mode, function, types, args, kwargs) -> None:
    """`out` keeps its placements, whatever the result's are."""
    out = kwargs["out"]
    out.copy_(GEMM(*args, out.dtype))


def _gemm(a, b, *args) -> list[tuple[list, list]]:
    """Placements of the result, and of all arguments; None for those without."""
    then, _ = parted(args)
    rank = max(a.ndim, b.ndim)
    shardings = []
    terms: tuple[Any, ...] = then.bias, then.residual
    rest = [None] * (len(args) - len(terms))
    types = [term.tensor_meta.dtype for term in terms if term is not None]
    # An activation doesn't distribute over a sum, and DTensor can't split integers.
    whole = bool(then.activation) or not all(dtype.is_floating_point for dtype in types)
    for result, *operands in _products(a, b):
        if then.symmetric and any(result.is_shard(dim) for dim in (rank - 2, rank - 1)):
            continue  # a device would mirror what it doesn't have
        if whole and result.is_partial():
            continue
        if then.activation in GATED and result.is_shard(rank - 1):
            continue  # a device would have gates without their columns
        added = [_like(result, term, rank) for term in terms]
        shardings.append(([result], [*operands, *added, *rest]))
    return shardings


def _products(a, b) -> Iterator[tuple]:
    """Placements of the result, `a` and `b`: all that multiply without communication."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    rank = max(a.ndim, b.ndim)
    yield Replicate(), Replicate(), Replicate()
    yield Shard(rank - 2), Shard(a.ndim - 2), Replicate()
    yield Shard(rank - 1), Replicate(), Shard(b.ndim - 1)
    yield Partial(), Shard(a.ndim - 1), Shard(b.ndim - 2)
    for dim in range(rank - 2):
        operands = [_like(Shard(dim), t, rank) for t in (a, b)]
        if any(placement.is_shard() for placement in operands):
            yield Shard(dim), *operands


def _like(result, term, rank: int):
    """Placement of `term`, which broadcasts to a result of `rank` dimensions placed as `result`.

    None without a term. What a term lacks of a sharded dimension, each device needs in full.
    """
    from torch.distributed.tensor import Replicate, Shard

    if term is None or not result.is_shard():
        return None if term is None else result
    dim = result.dim - rank + term.ndim
    return Shard(dim) if dim >= 0 and term.shape[dim] != 1 else Replicate()
