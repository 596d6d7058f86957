"""Checks of tritemm's operators on DTensor, by each process of a group: see `distributed_ranks`.

Every number is whole and small, so results are equal to the bit.
"""

import itertools

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

import tritemm
from tests.torch.twins import ACTIVATIONS, PLAIN
from tritemm.api.row_parallel import added, products
from tritemm.problem import NOTHING
from tritemm.runtime import fast_path

R, P = Replicate(), Partial()
OPERATORS = torch.ops.tritemm
OPTIONS = "auto", None, None


def rules(n: int) -> list[tuple]:
    """Shapes and placements of two operands, and the placement of their product, on n devices."""
    return [
        ((8, 8), (8, 12), R, R, R),
        ((8, 8), (8, 12), Shard(0), R, Shard(0)),
        ((8, 8), (8, 12), R, Shard(1), Shard(1)),
        ((8, 8), (8, 12), Shard(1), Shard(0), P),
        ((n, 5, 8), (8, 12), R, R, R),
        ((n, 5, 8), (8, 12), Shard(0), R, Shard(0)),
        ((n, 5, 8), (8, 12), Shard(1), R, Shard(1)),
        ((3, n, 8), (8, 12), Shard(1), R, Shard(1)),
        ((n, 5, 8), (8, 12), R, Shard(1), Shard(2)),
        ((n, 5, 8), (8, 12), Shard(2), Shard(0), P),
        ((n, 5, 8), (n, 8, 6), Shard(0), Shard(0), Shard(0)),
        ((n, 5, 8), (1, 8, 6), Shard(0), R, Shard(0)),
        ((8, 8), (n, 8, 6), R, Shard(0), Shard(0)),
        ((8, 8), (n, 8, 6), Shard(0), R, Shard(1)),
        ((1, 5, 8), (1, 8, 6), R, R, R),
        ((n, 1, 5, 8), (n, 8, 6), Shard(0), R, Shard(0)),
        ((n, 1, 5, 8), (n, 8, 6), R, Shard(0), Shard(1)),
        # Four devices have 2, 2, 2 and 0 of six.
        ((6, 8), (8, 12), Shard(0), R, Shard(0)),
        ((8, 8), (8, 6), R, Shard(1), Shard(1)),
        ((8, 6), (6, 12), Shard(1), Shard(0), P),
        ((8, 8), (8,), Shard(0), R, Shard(0)),
        ((8, 8), (8,), Shard(1), Shard(0), P),
        ((8,), (8, 8), R, Shard(1), Shard(0)),
        ((8,), (8, 8), Shard(0), Shard(0), P),
        ((8,), (8,), Shard(0), Shard(0), P),
        ((8,), (8,), R, R, R),
        ((4, 8, 8), (8,), Shard(0), R, Shard(0)),
        ((8,), (4, 8, 8), R, Shard(2), Shard(1)),
    ]


def whole(*shape, dtype=torch.float32, bound=3) -> torch.Tensor:
    """Whole numbers, the same on every device."""
    return torch.randint(-bound, bound + 1, shape).to(dtype)


def on(mesh, tensor):
    return tensor.to(mesh.device_type)


def place(tensor, mesh, *placements) -> DTensor:
    """`tensor`, sharded from what every device has of it, without communication."""
    tensor = on(mesh, tensor)
    if P in placements:
        first = mesh.get_local_rank() == 0
        placed = DTensor.from_local(tensor if first else torch.zeros_like(tensor), mesh, [P])
    else:
        placed = DTensor.from_local(tensor, mesh, [R] * mesh.ndim).redistribute(mesh, placements)
    return placed.detach().requires_grad_(tensor.requires_grad)


def placed(mesh, tensors, placements) -> list[DTensor]:
    return [place(t, mesh, p) for t, p in zip(tensors, placements, strict=True)]


def gemm(x, y, bias, residual, *rest, dtype=torch.float32):
    """The operator of what follows a product too; `rest`: its activation, alpha and beta."""
    return OPERATORS.gemm.default(x, y, bias, residual, *rest, False, *OPTIONS, dtype)


def same(found, expected, placement=None) -> None:
    """Assert that a DTensor stands for `expected`, and is placed so."""
    assert isinstance(found, DTensor)
    if placement is not None:
        assert found.placements == (placement,), (found.placements, placement)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.stride() == expected.stride(), (found.stride(), expected.stride())
    full = found.full_tensor().cpu()
    assert torch.equal(full, expected), (full - expected).abs().max()


def differentiated(mesh, result, tensors, found, sharded, placement):
    """The gradients of a sharded result, which are those of the whole one; from one placed so."""
    grad = whole(*result.shape)
    wanted = torch.autograd.grad(result, tensors, grad)
    gradients = torch.autograd.grad(found, sharded, place(grad, mesh, *placement))
    for gradient, value in zip(gradients, wanted, strict=True):
        same(gradient, value.contiguous())
    return gradients


def silently(call, *args, **named):
    """The result of a call that communicates nothing."""
    with CommDebugMode() as communication:
        result = call(*args, **named)
    assert communication.get_total_counts() == 0, communication.get_comm_counts()
    return result


def check_rules_are_registered_on_demand(mesh):
    a, b = place(whole(8, 8), mesh, R), place(whole(8, 8), mesh, R)
    with pytest.raises(NotImplementedError, match="sharding strategy"):
        OPERATORS.gemm.default(a, b, *NOTHING, *OPTIONS, torch.float32)
    with torch.inference_mode():
        assert tritemm.matmul(a, b).placements == (R,)
    OPERATORS.gemm.default(a, b, *NOTHING, *OPTIONS, torch.float32)
    tritemm.distributed.register()  # once more does no harm


def check_the_fast_path_is_for_plain_tensors(mesh):
    assert not fast_path.plain(place(whole(8, 8), mesh, R))
    assert not fast_path.plain(nn.Parameter(place(whole(8, 8), mesh, R)))


def check_what_no_rule_fits_is_redistributed(mesh):
    a, b = whole(8, 8), whole(8, 12)
    for placements in [(Shard(0), Shard(1)), (Shard(0), Shard(0)), (P, R), (P, P)]:
        x, y = placed(mesh, (a, b), placements)
        with CommDebugMode() as communication:
            result = tritemm.matmul(x, y)
        assert communication.get_total_counts() > 0
        same(result, a @ b)


def check_types(mesh):
    """That of the result is part of what DTensor remembers of a call."""
    for dtype, results in [
        (torch.float16, (torch.float16, torch.float32)),
        (torch.bfloat16, (torch.bfloat16, torch.float32)),
        (torch.int8, (torch.int32,)),
    ]:
        a, b = whole(8, 8, dtype=dtype), whole(8, 12, dtype=dtype)
        x, y = place(a, mesh, Shard(1)), place(b, mesh, Shard(0))
        for result in results:
            expected = (a.float() @ b.float()).to(result)
            same(silently(tritemm.matmul, x, y, out_dtype=result), expected, P)


def check_out(mesh):
    a, b = whole(8, 8), whole(8, 12)
    for placements in [(Shard(0), R), (Shard(1), Shard(0)), (R, R)]:
        x, y = placed(mesh, (a, b), placements)
        for placement in (R, Shard(0), Shard(1)):
            out = place(torch.zeros(8, 12), mesh, placement)
            assert tritemm.matmul(x, y, out=out) is out
            same(out, a @ b, placement)
            out.zero_()
            OPERATORS.gemm_out.default(x, y, *NOTHING, *OPTIONS, out=out)
            same(out, a @ b, placement)
            assert tritemm.matmul(x, y, activation="relu", out=out, beta=2) is out
            same(out, (a @ b).relu() + 2 * (a @ b), placement)
            row = place(a[0].repeat(2)[:12], mesh, R)
            tritemm.addmm(row, x, y, out=out)
            same(out, a[0].repeat(2)[:12] + a @ b, placement)


def epilogue(product, bias, residual, activation, alpha, beta):
    product = alpha * product
    product = ACTIVATIONS[activation or None](product if bias is None else product + bias)
    return product if residual is None else product + beta * residual


def like(placement, term, rank):
    """Placement of a term that is added to a result of `rank` dimensions, in plain words."""
    if not placement.is_shard():
        return placement
    dim = placement.dim - rank + term.dim()
    return Shard(dim) if dim >= 0 and term.shape[dim] > 1 else R


def check_gemm(mesh):
    """All rules with all terms; activations by turns, after the sum of parts without one."""
    activations = itertools.cycle(name or "" for name in reversed(PLAIN))
    for a_shape, b_shape, a_placed, b_placed, expected in rules(mesh.size())[:11]:
        a, b = whole(*a_shape), whole(*b_shape)
        product = a @ b
        x, y = place(a, mesh, a_placed), place(b, mesh, b_placed)
        *batch, rows, columns = product.shape
        bias = 4 * whole(columns)
        shapes = [product.shape, (rows, 1), (columns,), (*(1 for _ in batch), 1, columns), ()]
        for i, shape in enumerate(shapes):
            activation = "" if expected == P else next(activations)
            terms = (None, bias)[i % 2], (4 * whole(*shape), None)[i == 2]
            sharded = [
                t if t is None else place(t, mesh, like(expected, t, product.dim())) for t in terms
            ]
            rest = activation, 2.0, -1.0
            found = silently(gemm, x, y, *sharded, *rest)
            near(found, epilogue(product, *terms, *rest), expected)


def near(found, expected, placement) -> None:
    """As `same`, of whole numbers after an activation, which has errors of its own."""
    assert found.placements == (placement,), (found.placements, placement)
    torch.testing.assert_close(found.full_tensor().cpu(), expected, rtol=1e-3, atol=1e-3)


def check_a_gate_stays_with_its_partner(mesh):
    """Whatever the operands' placements: a device's share of columns would have gates alone."""
    a, b, bias = whole(8, 8), whole(8, 24), 4 * whole(24)
    want = epilogue(a @ b, bias, None, "swiglu", 1.0, 1.0)
    for a_placed, b_placed in ((Shard(0), R), (R, Shard(1)), (Shard(1), Shard(0)), (R, R)):
        x, y, z = place(a, mesh, a_placed), place(b, mesh, b_placed), place(bias, mesh, R)
        found = gemm(x, y, z, None, "swiglu", 1.0, 1.0)
        assert found.shape == want.shape
        torch.testing.assert_close(found.full_tensor().cpu(), want, rtol=1e-3, atol=1e-3)


def check_terms_are_added_once(mesh):
    """A sum over devices has one bias and one residual, and its activation after all of it."""
    a, b, bias, residual = whole(8, 8), whole(8, 12), 4 * whole(12), 4 * whole(8, 12)
    x, y = place(a, mesh, Shard(1)), place(b, mesh, Shard(0))
    terms = place(bias, mesh, R), place(residual, mesh, R)
    for activation, expected in [("", P), ("relu", R), ("", P)]:
        rest = activation, 1.0, 2.0
        found = gemm(x, y, *terms, *rest)
        same(found, epilogue(a @ b, bias, residual, *rest), expected)


def check_integers_are_not_divided(mesh):
    a, b = whole(8, 8, dtype=torch.int8), whole(8, 12, dtype=torch.int8)
    bias = whole(12, dtype=torch.int32)
    x, y = place(a, mesh, Shard(1)), place(b, mesh, Shard(0))
    found = gemm(x, y, place(bias, mesh, R), None, "", 1.0, 1.0, dtype=torch.int32)
    same(found, a.int() @ b.int() + bias, R)


def check_products_and_gradients(mesh):
    for a_shape, b_shape, a_placed, b_placed, expected in rules(mesh.size()):
        a, b = whole(*a_shape).requires_grad_(), whole(*b_shape).requires_grad_()
        result = a @ b
        x, y = place(a, mesh, a_placed), place(b, mesh, b_placed)
        product = silently(tritemm.matmul, x, y)
        with torch.inference_mode():
            again = placed(mesh, (a.detach(), b.detach()), (a_placed, b_placed))
            same(silently(tritemm.matmul, *again), result, expected)
        same(product.detach(), result.detach(), expected)
        incoming = [R if expected == P else expected]
        found = differentiated(mesh, result, (a, b), product, (x, y), incoming)
        for gradient, operand in zip(found, (x, y), strict=True):
            assert gradient.placements in (operand.placements, (P,))
            local = operand.shape if gradient.placements == (P,) else operand.to_local().shape
            assert gradient.to_local().shape == local


def check_gradients_of_gemm(mesh):
    for a_placed, b_placed, expected, activation in [
        (Shard(0), R, Shard(0), "relu"),
        (R, Shard(1), Shard(1), "relu"),
        (Shard(1), Shard(0), P, ""),
    ]:
        shapes = (8, 8), (8, 12), (12,), (8, 12)
        plain = [whole(*shape).requires_grad_() for shape in shapes]
        rest = activation, 2.0, -1.0
        result = epilogue(plain[0] @ plain[1], *plain[2:], *rest)
        # What is added to a sum over devices is whole on each, as RowwiseParallel has a bias.
        terms = [R if expected == P else like(expected, t, 2) for t in plain[2:]]
        placements = a_placed, b_placed, *terms
        sharded = placed(mesh, plain, placements)
        found = gemm(*sharded, *rest)
        assert found.placements == (expected,)
        incoming = [R if expected == P else expected]
        differentiated(mesh, result, plain, found, sharded, incoming)


def check_two_dimensions(mesh):
    """Each dimension of a mesh has a rule of its own."""
    both = init_device_mesh(mesh.device_type, (2, 2))
    for a_shape, a_placed, b_placed, expected in [
        ((8, 8), (Shard(0), R), (R, Shard(1)), (Shard(0), Shard(1))),
        ((8, 8), (Shard(0), Shard(1)), (R, Shard(0)), (Shard(0), P)),
        ((4, 4, 8), (Shard(0), Shard(1)), (R, R), (Shard(0), Shard(1))),
        ((2, 4, 8), (Shard(0), Shard(0)), (R, R), None),
        ((4, 2, 8), (Shard(0), Shard(0)), (R, R), (Shard(0), Shard(0))),
    ]:
        a, b = whole(*a_shape).requires_grad_(), whole(8, 12).requires_grad_()
        result = a @ b
        x, y = place(a, both, *a_placed), place(b, both, *b_placed)
        found = tritemm.matmul(x, y)
        same(found, result.detach())
        assert expected in (None, found.placements), found.placements
        differentiated(both, result, (a, b), found, (x, y), [R, R])


def check_bits_of_any_number(mesh):
    """1, 2 and 4 processes; rows alone or with others. Backward has the columns' own."""
    n, rank = mesh.size(), mesh.get_rank()
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.float32):
        x, w, bias = (
            torch.randn(*shape, device=mesh.device_type).to(dtype)
            for shape in ((6, 48), (5, 48), (5,))
        )
        alone = added(products(x, w, 8)) + bias
        mine = [t.chunk(n, -1)[rank].clone().requires_grad_() for t in (x, w)]
        got = tritemm.row_parallel_linear(*mine, bias)
        assert torch.equal(got, alone.to(dtype))
        assert torch.equal(tritemm.row_parallel_linear(mine[0][2:3], mine[1], bias), got[2:3])
        if n > 1:
            with pytest.raises(RuntimeError, match="omit create_graph"):
                torch.autograd.grad(got.sum(), mine, create_graph=True)
        got.sum().backward()
        ones = torch.ones_like(got)
        torch.testing.assert_close(mine[0].grad, (ones @ w).chunk(n, -1)[rank])
        torch.testing.assert_close(mine[1].grad, (ones.mT @ x).chunk(n, -1)[rank])
