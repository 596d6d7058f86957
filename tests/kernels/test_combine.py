"""What moves tokens to the rows of their experts and back, and what says which row is whose."""

import itertools

import pytest
import torch

from tests.harness import DEVICE
from tritemm.kernels import combine
from tritemm.op.combine import COMBINE

#: Tokens and choices of each, more than a launch sorts; in the interpreter, more than a chunk.
MANY = (5003, 8) if DEVICE == "cuda" else (33, 9)


def factors(dtype=torch.float64):
    """Rows, tokens, weights, places and ends for `COMBINE`; the last row is of no expert."""
    shapes = (4, 3), (2, 3), (2, 2)
    made = [torch.randn(s, dtype=dtype, device=DEVICE, requires_grad=True) for s in shapes]
    places = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=DEVICE)
    return *made, places, torch.tensor([2, 3], dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(
    ("find", "weighted"), [("rows", False), ("rows", True), ("tokens", True), ("weights", False)]
)
def test_combine_is_linear_in_each(find, weighted):
    rows, tokens, weights, places, offs = factors()
    given = {"rows": rows, "tokens": tokens, "weights": weights if weighted else None}
    given[find] = None
    there = {name: t for name, t in given.items() if t is not None}

    def found(*tensors):
        some = {**given, **dict(zip(there, tensors, strict=True))}
        return COMBINE(find, *some.values(), places, offs, torch.float64)

    dense = torch.zeros(4, 2, 2, dtype=torch.float64, device=DEVICE)  # rows x tokens x weights
    for (t, j), place in zip(itertools.product(range(2), range(2)), places.flatten(), strict=True):
        dense[place, t, j] = place < offs[-1]
    factor = torch.ones_like(weights) if not weighted else weights
    sums = {"rows": "rtj,th,tj->rh", "tokens": "rtj,rh,tj->th", "weights": "rtj,rh,th->tj"}
    others = {"rows": (tokens, factor), "tokens": (rows, factor), "weights": (rows, tokens)}
    want = torch.einsum(sums[find], dense, *others[find])
    torch.testing.assert_close(found(*there.values()), want)
    both = tuple(there.values())
    assert torch.autograd.gradcheck(found, both, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(found, both, fast_mode=True)
    if find == "tokens":
        torch.library.opcheck(COMBINE, (find, *given.values(), places, offs, torch.float64))
    stacked = torch.func.vmap(found)(*(torch.stack([t, 2 * t]) for t in both))
    torch.testing.assert_close(stacked[1], want * 2 ** len(both))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("experts", [1, 70])
@pytest.mark.parametrize("shape", [(1, 1), (32, 8), (130, 5), MANY], ids=str)
def test_choices_are_sorted_alike_by_one_launch_and_by_several(monkeypatch, shape, experts, dtype):
    """Equal ones in their order; those of no expert behind all others."""
    index = torch.randint(0, experts + 3, shape, device=DEVICE).to(dtype)
    if dtype.is_signed:
        index[::3, -1] = -1
    flat = index.flatten().long()
    here = (flat >= 0) & (flat < experts)
    order = torch.where(here, flat, experts).argsort(stable=True)
    for few in (8192, 0):
        monkeypatch.setattr(combine, "FEW", few)
        places, offs = torch.ops.tritemm.route(index, experts)
        assert places.dtype == offs.dtype == torch.int32
        count = torch.bincount(flat[here], minlength=experts)
        assert torch.equal(offs.long(), count.cumsum(0))
        assert torch.equal(places.flatten()[order], torch.arange(flat.numel(), device=DEVICE).int())
