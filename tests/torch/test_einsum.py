"""`einsum` of two tensors beside torch's, and what it copies."""

import pytest
import torch

import tritemm
from tests.harness import DEVICE
from tests.torch.twins import equal, integers
from tritemm.plan import kinds

EQUATIONS = {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "ij,jk": ((3, 4), (4, 5)),
    " kj, ki -> ij": ((4, 3), (4, 5)),
    "bqhd,bkhd->bhqk": ((2, 5, 3, 4), (2, 6, 3, 4)),
    "bhqk,bkhd->bqhd": ((2, 3, 5, 6), (2, 6, 3, 4)),
    "...ij,...jk->...ik": ((2, 3, 4), (4, 5)),
    "...ij,jk": ((2, 7, 3, 4), (4, 5)),
    "b...,b...->...": ((2, 3, 4), (2, 3, 4)),
    "...,i->i...": ((2, 3), (4,)),
    "ab...,bc->a...c": ((2, 3, 4), (3, 5)),
    "abcd,cdef->abef": ((2, 3, 4, 5), (4, 5, 2, 3)),
    "abcd,dcfe->efab": ((2, 3, 4, 5), (5, 4, 2, 3)),
    "i,i->": ((4,), (4,)),
    "i,j->ij": ((3,), (4,)),
    "i,->i": ((3,), ()),
    "ij,kl->il": ((3, 4), (5, 6)),
    "ij,ij->ij": ((3, 4), (3, 4)),
    "bij,bij->b": ((2, 3, 4), (2, 3, 4)),
    "ii,ij->j": ((3, 3), (3, 4)),
    "iij,jk->ik": ((3, 3, 4), (4, 5)),
    "ij,jk->ik, of sizes 1 and 4": ((3, 1), (4, 5)),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", EQUATIONS)
def test_torchs_results_and_gradients(name):
    equation = name.partition(", of")[0]
    a, b = (integers(*shape).requires_grad_() for shape in EQUATIONS[name])
    want, got = torch.einsum(equation, a, b), tritemm.einsum(equation, a, b)
    equal(got, want)
    grad = integers(*want.shape)
    equal(*(torch.autograd.grad(result, (a, b), grad) for result in (got, want)))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bqhd,bkhd->bhqk", ((2, 5, 3, 8), (2, 6, 3, 8))),
        ("bhqk,bkhd->bqhd", ((2, 3, 5, 8), (2, 8, 3, 4))),
        ("btc,hdc->bthd", ((2, 5, 8), (3, 4, 8))),
        ("bthd,hdc->btc", ((2, 5, 3, 4), (3, 4, 8))),
    ],
)
def test_views_are_multiplied_where_they_lie(equation, shapes, monkeypatch):
    """Products of attention: scores, their use, and the projections before and after it."""
    seen, product = [], kinds.product

    def noted(a, b, *rest):
        seen.extend((a.data_ptr(), b.data_ptr()))
        return product(a, b, *rest)

    monkeypatch.setattr("tritemm.op.gemm.product", noted)
    monkeypatch.setattr("tritemm.plan.kinds.product", noted)
    a, b = (integers(*shape, dtype=torch.float16) for shape in shapes)
    got = tritemm.einsum(equation, a, b)
    assert torch.equal(got, torch.einsum(equation, a, b))
    assert seen == [a.data_ptr(), b.data_ptr()]


def test_options_are_matmuls():
    a, b = (integers(3, 4, dtype=torch.float16) for _ in range(2))
    assert tritemm.einsum("ik,jk", a, b, out_dtype=torch.float32).dtype == torch.float32
    with pytest.raises(ValueError, match="tiled"):
        tritemm.einsum("ik,jk", a, b, kernel="tildes")


@pytest.mark.parametrize("equation", ["ij,jk->k", "ij,jk->", "ij,kl->jl", "ij,kl->", "iij,jk->k"])
def test_letters_that_one_tensor_has_alone(equation):
    """Their sums leave int8's range, so they are taken of the product."""
    sizes = {"i": 30, "j": 7, "k": 40, "l": 3}
    a, b = (
        torch.full([sizes[i] for i in letters], 100, dtype=torch.int8, device=DEVICE)
        for letters in equation.split("->")[0].split(",")
    )
    want = torch.einsum(equation, a.double(), b.double())
    got = tritemm.einsum(equation, a, b)
    assert got.dtype == torch.int32 and torch.equal(got.double(), want)
    assert torch.equal(tritemm.einsum(equation, a.double(), b.double()), want)
