"""`moe`: a mixture of experts, as two grouped products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ..dtypes import Precision, check_flag
from ..op.combine import ROUTE, combined
from ..op.gate import GATE
from ..problem import ACTIVATIONS, BLOCK, FP8, GATES, Activation, activated
from ..runtime.sizes import fits, holds
from .arguments import pair, under_autocast
from .epilogue import check_kind
from .groups import check_bias, grouped_mm
from .linear_8bit import linear_8bit
from .quantize import Quantized

#: Types of expert numbers.
_INTEGERS = {
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
}  # fmt: skip


def moe(
    hidden: torch.Tensor,
    gate_up: torch.Tensor | Quantized,
    down: torch.Tensor | Quantized,
    topk_index: torch.Tensor,
    topk_weight: torch.Tensor,
    *,
    activation: str | Callable[[torch.Tensor], torch.Tensor] = "silu",
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    interleaved: bool = False,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    dtype: str | None = None,
) -> torch.Tensor:
    """A mixture of experts: for each token, the weighted sum of its k experts' results.

    Expert e computes (activation(gate) * up) @ down[e].T + down_bias[e], where gate and up are the
    columns of token @ gate_up[e].T + gate_up_bias[e]. The device sorts tokens by expert; the host
    reads nothing. So an expert may have any number of tokens, and a CUDA graph can be replayed with
    other choices of experts.

    Args:
        hidden: [..., H], T tokens; float16, bfloat16, float32 or float64.
        gate_up: [E, 2 I, H], as transformers stores it; any strides: pass weights stored as
            [E, H, 2 I] as `weights.mT`. Both weights may be results of
            `quantize(weights, "fp8", "block2d")`.
        down: [E, O, I], any strides; O is the width of the result, usually H.
        topk_index: [T, k], or with the leading dimensions of `hidden`; any integer type. An index
            outside 0 .. E - 1 is no expert and adds nothing, whatever its weight.
        topk_weight: same shape, any floating-point type.
        activation: of the gate, "silu", "gelu", "gelu_tanh" or "relu"; or a function that maps the
            whole product [T k, 2 I], or [T k, I] without a gate, to [T k, I] of the same type. The
            first product's kernel applies silu and gelu unless a gradient is needed.
        gate_up_bias, down_bias: [E, 2 I] and [E, O].
        interleaved: gate and up are the even and the odd columns, instead of the halves.
        batch_invariant, precision: see `matmul`.
        dtype: "fp8" multiplies in fp8, in blocks as in `tritemm.nn.Float8Linear`: tokens, weights
            and gradients are quantised at each call. `Quantized` weights don't need it.

    Returns:
        [..., O] in the type of `hidden`. A token's k results are summed in float32, or float64, in
        their order: the same bits, run after run. The same holds for all gradients.

    Raises:
        RuntimeError, TypeError, NotImplementedError: tensors that don't fit each other.
        ValueError: an unknown option, or one that doesn't go with the others.

    It is differentiable, forwards and backwards, to any order; in fp8 once, backwards. For backward
    it keeps T k rows each of `hidden`, the first product, the gate's output and the second product.
    For silu and gelu it recomputes the gate and nothing else; `torch.utils.checkpoint` recomputes
    more.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> hidden, down = torch.ones(2, 3, device=device), torch.ones(4, 3, 1, device=device)
    >>> gate_up = torch.ones(4, 2, 3, device=device)
    >>> index = torch.tensor([[0, 2], [3, 0]], device=device)
    >>> weight = torch.tensor([[0.5, 0.5], [1.0, 1.0]], device=device)
    >>> tritemm.moe(hidden, gate_up, down, index, weight, activation="relu").tolist()
    [[9.0, 9.0, 9.0], [18.0, 18.0, 18.0]]
    """
    given = hidden, gate_up, down, topk_index, topk_weight
    of_weights = [w.values if isinstance(w, Quantized) else w for w in (gate_up, down)]
    tensors = (hidden, *of_weights, topk_index, topk_weight, gate_up_bias, down_bias)
    tensors = tuple(t for t in tensors if t is not None)
    if has_torch_function(tensors):
        return handle_torch_function(
            moe, tensors, *given, activation=activation, gate_up_bias=gate_up_bias,
            down_bias=down_bias, interleaved=interleaved, batch_invariant=batch_invariant,
            precision=precision, dtype=dtype,
        )  # fmt: skip
    in_fp8 = _check_types(gate_up, down, dtype, precision)
    factors: Sequence = (gate_up, down)
    gate_up, down = of_weights
    if isinstance(factors[0], Quantized):
        x, _ = pair("moe", ("hidden", "hidden"), hidden, hidden, axis=None)
    else:
        x, gate_up = pair("moe", ("hidden", "gate_up"), hidden, gate_up, axis=-1)
        _, down = pair("moe", ("hidden", "down"), hidden, down, axis=None)
        factors = gate_up, down
    fused, between = _gating(activation, interleaved, x.dtype)
    _check_sizes(x, gate_up, down, callable(activation))
    _check_choice(topk_index, topk_weight, x)
    for name, bias, weight in (
        ("gate_up_bias", gate_up_bias, gate_up),
        ("down_bias", down_bias, down),
    ):
        if bias is not None:
            check_bias(name, bias, x, *weight.shape[:2])
    x = x.flatten(0, -2)
    places, offs = ROUTE(topk_index.flatten(0, -2), gate_up.shape[0])
    x = combined("rows", None, x, None, places, offs, x.dtype)

    def multiply(x, weight, bias, ending=None):
        if in_fp8:
            y = linear_8bit(x, weight, bias, batch_invariant, offs=offs)
            return GATE(y, ending) if ending else y
        return grouped_mm(
            x, weight.mT, bias=bias, activation=ending, offs=offs,
            batch_invariant=batch_invariant, precision=precision,
        )  # fmt: skip

    x = multiply(x, factors[0], gate_up_bias, fused)
    if between is not None:
        x = _ended(between, x, down)
    x = multiply(x, factors[1], down_bias)
    weights = topk_weight.reshape(places.shape)
    x = combined("tokens", x, None, weights, places, offs, hidden.dtype)
    return x.view(*hidden.shape[:-1], down.shape[-2])


def _check_types(gate_up, down, dtype, precision) -> bool:
    """Whether products are in fp8; or an error, also for weights that `quantize` didn't make."""
    if dtype not in (None, "fp8"):
        raise ValueError(f"dtype={dtype!r} is unknown; the only choice is 'fp8'")
    quantised = [isinstance(weight, Quantized) for weight in (gate_up, down)]
    if any(quantised) and not all(quantised):
        raise TypeError("one of gate_up and down isn't quantised; quantise it or pass dtype='fp8'")
    in_fp8 = dtype is not None or all(quantised)
    if in_fp8 and precision is not None:
        raise ValueError(f"precision={precision!r} is for float32, but the operands are fp8")
    if not all(quantised):
        return in_fp8
    for name, (values, scale) in (("gate_up", gate_up), ("down", down)):
        *experts, rows, columns = values.shape
        blocks = (*experts, -(-rows // BLOCK), -(-columns // BLOCK))
        able = values.dtype in FP8 and scale.dtype == torch.float32
        able = able and scale.device == values.device
        if len(experts) != 1 or not able or not fits(scale.shape, blocks):
            told = [f"{t.dtype} {list(t.shape)} on {t.device}" for t in (values, scale)]
            raise RuntimeError(
                f"{name} is {told[0]}, and its scale {told[1]}; pass the result of "
                'quantize(weights, "fp8", "block2d") for weights [experts, rows, columns]'
            )
    return True


def _gating(activation, interleaved: bool, dtype) -> tuple[Activation | None, Callable | None]:
    """The activation that the first product ends with, or the function that runs after it."""
    check_flag("interleaved", interleaved)
    if callable(activation):
        if interleaved:
            raise ValueError("interleaved=True needs a named activation; a function pairs columns")
        return None, activation
    if not activation or activation not in ACTIVATIONS:
        known = ", ".join(filter(None, ACTIVATIONS))
        raise ValueError(
            f"activation={activation!r} is unknown; pass one of {known}, or a "
            "function of the product"
        )
    if not interleaved and activation in GATES and dtype != torch.float64:
        return GATES[activation], None

    def gated(x: torch.Tensor) -> torch.Tensor:
        gate, up = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        return activated(gate, activation) * up

    return None, gated


def _ended(between: Callable, product: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The activation's result [T k, I] for the first product [T k, 2 I]; an error if it's wrong."""
    x, shape = between(product), (product.shape[0], down.shape[2])
    if not isinstance(x, torch.Tensor) or not fits(x.shape, shape):
        got = f"shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise RuntimeError(
            f"activation returned {got} for a product of shape {list(product.shape)}; with down of "
            f"shape {list(down.shape)} it must return {list(shape)}"
        )
    same = x.dtype == product.dtype or under_autocast(x.device)
    if not same or x.device != product.device:
        raise RuntimeError(
            f"activation returned {x.dtype} on {x.device}; it must return {product.dtype} on "
            f"{product.device}, like the product"
        )
    return x


def _check_sizes(x, gate_up, down, own_gate: bool) -> None:
    """Refuse tensors that can't be weights of the same experts."""
    if not x.is_floating_point():
        raise NotImplementedError(f"tritemm.moe is not implemented for {x.dtype}")
    shapes = f"gate_up has shape {list(gate_up.shape)} and down {list(down.shape)}"
    if gate_up.dim() != 3 or down.dim() != 3 or x.dim() < 2:
        raise RuntimeError(
            f"hidden has shape {list(x.shape)}, {shapes}; they must be [..., tokens, H], "
            "[experts, 2 I, H] and [experts, H, I]"
        )
    if not holds(x.shape[-1] == gate_up.shape[2]):
        raise RuntimeError(f"hidden has {x.shape[-1]} columns, and {shapes}: H is last in both")
    if not holds(gate_up.shape[0] == down.shape[0]):
        raise RuntimeError(f"{shapes}; they must have the same number of experts")
    if not own_gate and not holds(gate_up.shape[1] == 2 * down.shape[2]):
        raise RuntimeError(
            f"{shapes}; with a gate, gate_up must have twice as many rows as down has columns. "
            "Pass weights that are stored the other way round as weights.mT"
        )


def _check_choice(index, weight, x) -> None:
    """Refuse tensors that don't choose experts for each of the tokens `x` [..., H]."""
    for name, t in (("topk_index", index), ("topk_weight", weight)):
        check_kind(name, t, x, any_type=True)
        if t.device != x.device:
            raise RuntimeError(f"{name} is on {t.device}; it must be on {x.device} as hidden is")
    if index.dtype not in _INTEGERS or not weight.is_floating_point():
        raise TypeError(
            f"topk_index is {index.dtype} and topk_weight {weight.dtype}; pass integers and "
            "floating-point numbers"
        )
    lead, tokens = x.shape[:-1], math.prod(x.shape[:-1])
    there = fits(index.shape[:-1], lead) or fits(index.shape[:-1], (tokens,))
    if not there or not fits(index.shape, weight.shape):
        raise RuntimeError(
            f"topk_index has shape {list(index.shape)} and topk_weight {list(weight.shape)}; both "
            f"must have a row of k for each of the {tokens} tokens of hidden, [{tokens}, k] or "
            f"{[*lead, 'k']}".replace("'", "")
        )
