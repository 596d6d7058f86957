"""Mixtures of experts in fp8: the groups' products and gradients, `tritemm.moe`, `convert`."""

import pytest
import torch

import tritemm
from tests.groups import bounds, offsets
from tests.harness import DEVICE
from tests.nn.test_experts import tiny
from tests.nn.test_float8 import random
from tritemm import quantize
from tritemm.api.linear_8bit import linear_8bit
from tritemm.nn import registered

#: Experts, and what is hidden and between; no multiples of 128.
E, H, I = 3, 136, 72  # noqa: E741
SIZES, REST = (37, 0, 110), 4


def learned(*shape):
    """Weights of about as much as they are in a layer."""
    return random(*shape).div(10 * shape[-1] ** 0.5).requires_grad_()


def test_groups_multiply_as_layers_do():
    """Results and gradients are those of a layer for each group."""
    offs, rows = offsets(SIZES), sum(SIZES) + REST
    x, weight, bias = random(rows, H).requires_grad_(), learned(E, I, H), learned(E, I)
    y = linear_8bit(x, weight, bias, offs=offs)
    grad = random(rows, I)
    found = torch.autograd.grad(y, (x, weight, bias), grad)
    assert not y[offs[-1] :].count_nonzero() and not found[0][offs[-1] :].count_nonzero()
    for g, (i, j) in enumerate(bounds(offs)):
        leaves = [t.detach().clone().requires_grad_() for t in (x[i:j], weight[g], bias[g])]
        one = linear_8bit(*leaves)
        wanted = torch.autograd.grad(one, leaves, grad[i:j])
        torch.testing.assert_close(y[i:j], one, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[0][i:j], wanted[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1][g], wanted[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[2][g], wanted[2])


def case(tokens=12, h=40, i=24, biases=True):
    index = torch.randint(E, (tokens, 2), device=DEVICE)
    weight = torch.rand(tokens, 2, device=DEVICE)
    hidden = random(tokens, h, dtype=torch.bfloat16).requires_grad_()
    weights = [learned(E, 2 * i, h).bfloat16(), learned(E, h, i).bfloat16()]
    named = {"gate_up_bias": learned(E, 2 * i), "down_bias": learned(E, h)} if biases else {}
    return hidden, [w.detach().requires_grad_() for w in weights], (index, weight), named


def test_moe_loses_what_fp8_loses():
    hidden, weights, chosen, biases = case(h=136, i=72)
    inputs = hidden, *weights, *biases.values()
    results = []
    for more in ({}, {"dtype": "fp8"}):
        y = tritemm.moe(hidden, *weights, *chosen, **biases, **more)
        assert y.dtype == hidden.dtype
        results.append([y, *torch.autograd.grad(y, inputs, torch.ones_like(y))])
    *_, last = inputs  # the bias of what is summed, whose gradient nothing rounds
    for ours, exact, to in zip(results[1], results[0], (None, *inputs), strict=True):
        error = (ours - exact).float().norm() / exact.float().norm()
        assert ours.dtype == exact.dtype and error < 0.08 and (error > 0) != (to is last)


def test_weights_that_are_quantised_already():
    hidden, weights, chosen, biases = case()
    given = [quantize(w, "fp8", "block2d") for w in weights]
    found = []
    for each, more in ((given, {}), (weights, {"dtype": "fp8"})):
        y = tritemm.moe(hidden, *each, *chosen, activation="relu", **biases, **more)
        found.append((y, *torch.autograd.grad(y.float().square().sum(), hidden)))
    for ours, want in zip(*found, strict=True):
        assert torch.equal(ours, want)


@pytest.mark.once
def test_compiled_without_a_break():
    hidden, weights, chosen, _ = case(biases=False)

    def step(hidden, *weights):
        return tritemm.moe(hidden, *weights, *chosen, dtype="fp8").float().square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(f(hidden, *weights), (hidden, *weights)) for f in (compiled, step)]
    for ours, want in zip(*grads, strict=True):
        assert torch.equal(ours, want)


def test_convert_has_experts_multiply_in_fp8(monkeypatch):
    model, tokens = tiny("Qwen3MoeConfig", num_hidden_layers=2), torch.arange(12, device=DEVICE)
    want, asked = model(tokens[None]).logits, []

    def noted(*args, **options):
        asked.append(options["dtype"])
        return tritemm.moe(*args, **options)

    monkeypatch.setattr("tritemm.nn.registered.moe", noted)
    registered.register_experts.cache_clear()
    tritemm.convert(model, dtype="fp8")
    got = model(tokens[None]).logits
    assert asked == ["fp8"] * 2 and (got - want).norm() < 0.15 * want.norm()


def refused(change, **options):
    hidden, weights, chosen, _ = case(4, biases=False)
    return lambda: tritemm.moe(hidden, *change(weights), *chosen, **options)


def in_blocks(weights):
    return [quantize(w, "fp8", "block2d") for w in weights]


WRONG = {
    "dtype": (refused(list, dtype="int8"), ValueError, "'int8' is unknown; the only choice is"),
    "one": (refused(lambda w: (in_blocks(w)[0], w[1])), TypeError, "isn't quantised"),
    "rows": (
        refused(lambda w: [quantize(t) for t in w]), RuntimeError, "gate_up .* result of quantize",
    ),
    "precision": (refused(list, dtype="fp8", precision="tf32"), ValueError, "operands are fp8"),
    "scales": (
        refused(lambda w: [q._replace(scale=q.scale.double()) for q in in_blocks(w)]),
        RuntimeError, "its scale torch.float64",
    ),
    "columns": (
        refused(lambda w: in_blocks([t[..., :-8] for t in w])), RuntimeError, "hidden has 40 col",
    ),
    "sizes": (refused(lambda w: in_blocks([w[0][:, 2:], w[1]])), RuntimeError, "twice as many"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "told"), WRONG.values(), ids=WRONG)
def test_refused(call, error, told):
    with pytest.raises(error, match=told):
        call()
