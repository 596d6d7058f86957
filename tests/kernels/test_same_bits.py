"""Same call, same bits: the first of a kind, which plans, chooses and binds, and those after it.

A first call is made one by forgetting all that was learnt: what is planned, chosen, asked for and
bound. Compiled code stays.
"""

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch

import tritemm
from tests.harness import DEVICE, operand, operands
from tests.sweep import CODE
from tritemm import plan
from tritemm.problem import ACTIVATIONS, GATED
from tritemm.runtime import binding, fast_path

HALF, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
TYPES = [HALF, BF16, FP32, FP64, torch.int8]
ENDINGS = [*ACTIVATIONS, *GATED]
#: M, N, K and the batch, of a GPU and of the interpreter.
SHAPES = [
    (64, 128, 256, ()), (300, 520, 136, ()), (16, 1024, 512, ()), (1, 256, 640, ()),
    (129, 66, 75, (2,)), (40, 96, 48, (3, 2)), (256, 2048, 128, ()), (544, 64, 12, (2,)),
] if DEVICE == "cuda" else [(5, 8, 6, ()), (3, 16, 9, (2,))]  # fmt: skip
#: Calls on a GPU, which the code draws, in so many tests; of the interpreter's few, one for each
#: pair of the tables.
CALLS, TESTS = 800, 40


@dataclasses.dataclass(frozen=True)
class Call:
    """One product: what makes it, in new memory, and the tensors that its gradients are of."""

    words: str
    make: Callable[[], torch.Tensor]
    leaves: tuple[torch.Tensor, ...]

    def bits(self) -> list[torch.Tensor]:
        """The result's, and the gradients' where they are recorded."""
        found = [self.make()]
        if found[0].requires_grad:
            grad = torch.linspace(-1, 1, found[0].numel(), device=DEVICE).to(found[0].dtype)
            found += torch.autograd.grad(found[0], self.leaves, grad.view(found[0].shape))
        return [t.detach().clone().contiguous().view(torch.uint8) for t in found]


def drawn(rng: random.Random, dtype: torch.dtype, activation: str) -> Call:
    """A call of any epilogue, layout and way of calling, of operands of `dtype`."""
    whole = not dtype.is_floating_point
    M, N, K, batch = rng.choice(SHAPES)
    a = operand(M, K, dtype, rng.choice("NTS"), batch, rng.choice((0, 8)), rng.random() < 0.7)
    b = operand(K, N, dtype, rng.choice("NTT"), rng.choice((batch, ())), 0, rng.random() < 0.7)
    columns = N // 2 if activation in GATED else N
    kinds = [torch.int32] if whole else [dtype, dtype, FP32, FP64, BF16]
    shapes = [(*batch, M, columns), (M, columns), (columns,), (M, 1), (1,), ()]

    def added(*shape):
        return operand(1, max(1, torch.Size(shape).numel()), FP32)[0].mul(9).to(rng.choice(kinds))

    named = {"activation": activation or None}
    if rng.random() < 0.5:
        named["bias"] = added(N)
    if rng.random() < 0.6:
        shape = rng.choice(shapes)
        named["residual"] = added(*shape).view(shape)
        named["beta"] = rng.choice((None, 1, 0, 3 if whole else 0.75))
    named["alpha"] = rng.choice((1, 1, 0, 2 if whole else 0.5))
    if dtype == HALF and rng.random() < 0.2:
        named["accumulate"] = HALF
    if dtype in (HALF, BF16, FP32) and rng.random() < 0.3:
        named["out_dtype"] = rng.choice((HALF, BF16, FP32))
    if dtype == FP32:
        named["precision"] = rng.choice(("ieee", "tf32", "tf32x3", "bf16x3"))
    named["batch_invariant"] = rng.random() < 0.2
    way = rng.choice(("plain", "plain", "out", "training", "routed"))
    leaves = ()
    if way == "training" and not whole:
        leaves = tuple(t.requires_grad_() for t in (a, b))
    out = named.get("out_dtype") or (torch.int32 if whole else dtype)

    def make():
        if way == "routed" and not whole and not batch:
            c = named.get("residual", a.new_zeros(()))
            with tritemm.enabled():
                return torch.addmm(c.to(dtype).reshape(-1)[:1], a, b, beta=2, alpha=named["alpha"])
        if way == "out":
            target = torch.empty(*batch, M, columns, dtype=out, device=DEVICE)
            return tritemm.matmul(a, b, out=target, **named)
        return tritemm.matmul(a, b, **named)

    strides = f"{tuple(a.shape)} {a.stride()} @ {tuple(b.shape)} {b.stride()}"
    how = {k: (v.dtype, tuple(v.shape)) if hasattr(v, "shape") else v for k, v in named.items()}
    return Call(f"{way}, {dtype}, {strides}, {how}", make, leaves)


def forget():
    """All but compiled code."""
    plan.forget()
    fast_path.OPTIONS.clear()
    binding._CALLS.clear()


def check(call: Call) -> bool:
    """Whether the call can be made; then all its calls have the bits of the first."""
    forget()
    try:
        first = call.bits()
    except ValueError:  # batch_invariant=True can't have it
        return False
    for later in ("second", "third"):
        assert all(map(torch.equal, first, call.bits())), f"the {later} call: {call.words}"
    forget()
    assert all(map(torch.equal, first, call.bits())), f"a first call again: {call.words}"
    return True


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(TESTS))
def test_random_calls(part):
    rng = random.Random(f"{CODE} {part}")
    made = 0
    while made < CALLS // TESTS:
        dtype = TYPES[rng.randrange(len(TYPES))]
        activation = rng.choice(ENDINGS) if dtype.is_floating_point else ""
        made += check(drawn(rng, dtype, activation))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_call_of_every_ending(dtype):
    rng = random.Random(str(dtype))
    endings = ENDINGS if dtype.is_floating_point else [""]
    assert sum(check(drawn(rng, dtype, activation)) for activation in endings)


@pytest.mark.parametrize("way", ["plans", "bindings"])
def test_a_later_call_that_goes_another_way_is_seen(way, monkeypatch):
    """The check itself: of calls whose plan, or whose launch, is another one the second time."""
    a, b = operands(5, 16, 8, HALF)
    calls = []

    def make():
        calls.append(len(fast_path.KNOWN) if way == "plans" else len(binding._CALLS))
        result = tritemm.matmul(a, b)
        binding._CALLS[way] = None
        return result + (1 if calls[-1] else 0)

    with pytest.raises(AssertionError, match="the second call"):
        check(Call("planted", make, ()))
    assert calls[0] == 0
