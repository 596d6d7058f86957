"""Rewrites our products in Inductor's graphs: fewer of them, with their epilogues in the kernel.

Layers with the same input become one product if their weights are adjacent in memory. Without a
gradient, a gated activation of two such layers becomes part of it, and any other activation that
follows a product becomes its epilogue. The graph is functional: equal nodes are equal values,
whatever the original code wrote to in place; hooks are part of the graph.

Weights are compared while the graph is compiled, and again at each run: if they are no longer
adjacent, the products run one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..api.blas import linear
from ..op.schema import GEMM, parted
from ..problem import ACCUMULATE, ACTIVATIONS, GATED, GATES, NOTHING, EpilogueInputs, activated
from ..runtime import inductor
from ..runtime.operators import called_by_inductor, define, implement

_MERGED = define(
    "merged(Tensor input, Tensor first, Tensor second, Tensor? third, Tensor? first_bias, "
    "Tensor? second_bias, Tensor? third_bias, str activation, str? precision) -> Tensor"
)
#: The most layers that `merged` takes.
_MOST = 3


# The operator, which exists only in graphs, below autograd


def _merged(input, first, second, third, bias_1, bias_2, bias_3, activation, precision, out=None):
    """The products of [..., K] and weights [N, K], with biases [N] or None, side by side.

    With an activation, the gated activation of them; the first product is the gate.
    """
    weights, biases = _there(first, second, third), _there(bias_1, bias_2, bias_3)
    weight, bias = packed(*weights), packed(*biases) if biases else None
    if weight is not None and (bias is not None or not biases):
        return linear(
            input, weight, bias, activation=activation or None, precision=precision, out=out
        )
    if activation:  # of contiguous tensors, for the same bits as in eager code
        gate = activated(linear(input, first, precision=precision), GATED[activation])
        return torch.mul(gate, linear(input, second, precision=precision), out=out)
    whole = _merged_fake(input, first, second, third) if out is None else out
    parts = whole.split([w.shape[0] for w in weights], -1)
    for w, b, part in zip(weights, biases or (None,) * _MOST, parts, strict=False):
        linear(input, w, b, precision=precision, out=part)
    return whole


def _merged_into(input, first, second, *rest, out):
    """What code compiled by Inductor calls instead of `merged`, to write to memory it has planned.

    `rest`: the other tensors that aren't None; for each argument whether it is; the constants.
    """
    *others, third, bias_1, bias_2, bias_3, activation, precision = rest
    given, there = iter(others), (third, bias_1, bias_2, bias_3)
    third, bias_1, bias_2, bias_3 = (next(given) if each else None for each in there)
    _merged(input, first, second, third, bias_1, bias_2, bias_3, activation, precision, out=out)


def _merged_fake(
    input, first, second, third, bias_1=None, bias_2=None, bias_3=None, activation="", _=None
):
    weights = (first,) if activation else _there(first, second, third)
    return input.new_empty((*input.shape[:-1], sum(w.shape[0] for w in weights)))


implement(_MERGED, _merged, "CPU", "CUDA")
implement(_MERGED, _merged_fake, "Fake")
called_by_inductor("merged_into", _merged_into)


def _there(*tensors) -> list:
    return [t for t in tensors if t is not None]


def packed(*tensors: torch.Tensor) -> torch.Tensor | None:
    """All of them as one tensor [sum of rows, ...], if one memory follows the other.

    None if it doesn't, or if they are in different storages, or their memory was freed.
    """
    if not all(itertools.starmap(_adjacent, itertools.pairwise(tensors))):
        return None
    first, last, rows = tensors[0], tensors[-1], sum(tensor.shape[0] for tensor in tensors)
    end = (last.storage_offset() + last.numel()) * first.element_size()
    if first.untyped_storage().nbytes() < end:
        return None
    # A dimension of one element may have any stride, and be contiguous: `first` can't tell.
    rest = first.shape[1:]
    return first.detach().as_strided((rows * math.prod(rest),), (1,)).view(rows, *rest)


def _adjacent(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether both are contiguous and alike, and the second begins where the first one ends."""
    return (
        first.shape[1:] == second.shape[1:]
        and first.dtype == second.dtype
        and 0 not in (first.numel(), second.numel())
        and first.is_contiguous()
        and second.is_contiguous()
        and _place(second) == (_place(first)[0], first.storage_offset() + first.numel())
    )


def _place(tensor: torch.Tensor) -> tuple[int, int | torch.SymInt]:
    """Storage of a tensor, and the tensor's offset in it, in elements."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset()


# The graph


class _Product(NamedTuple):
    """A product in a graph, input @ other + bias, without any other epilogue."""

    node: Node
    input: Node
    other: Node
    bias: Any  # a Node or None
    precision: str | None
    #: The graph's input that `other` is the transpose of, if there is one.
    weight: Node | Any

    @property
    def value(self) -> torch.Tensor:
        return self.node.meta["val"]


def fuse(graph: Graph) -> None:
    """Merge the products of a graph, as the head of this module says."""
    inductor.lower(_MERGED, "merged_into", tensors=3, optional=4)
    without_gradient = inductor.is_inference()
    for run in _runs(_products(graph)):
        if not (without_gradient and len(run) == 2 and _gate(graph, *run)):
            _merge(graph, run)
    if without_gradient:
        for product in _products(graph):
            _activate(graph, product)
    graph.eliminate_dead_code()


def _products(graph: Graph) -> list[_Product]:
    """The graph's products for which the dispatcher chooses a kernel, in order."""
    products = []
    for node in graph.find_nodes(op="call_function", target=GEMM):
        input, other, *rest = node.args
        then, (kernel, precision, accumulate, dtype) = parted(rest)
        usual = kernel == "auto" and then._replace(bias=None, beta=1.0) == NOTHING
        if usual and dtype == input.meta["val"].dtype and accumulate == ACCUMULATE[dtype]:
            products.append(_Product(node, input, other, then.bias, precision, _transposed(other)))
    return products


def _transposed(node: Node) -> Node | None:
    """The graph's input that `node` is the transpose of, or None."""
    given: Any = node.args[0] if node.target is torch.ops.aten.permute.default else None
    if given is None or node.args[1] != [1, 0] or given.op not in ("placeholder", "get_attr"):
        return None
    return given


def _runs(products: Sequence[_Product]) -> list[list[_Product]]:
    """Two or three products per input, whose weights and biases are adjacent in memory."""

    def kind(product):
        where = product.node.meta.get("custom")  # for example, a stream
        return id(product.input), str(product.precision), product.bias is None, str(where)

    able = (p for p in products if p.weight and _fixed(p.weight) and _fixed(p.bias or p.weight))
    runs: list[list[_Product]] = []
    for _, same in itertools.groupby(sorted(able, key=kind), kind):
        runs.append([])
        for product in sorted(same, key=lambda p: _place(p.weight.meta["val"])):
            if runs[-1] and (len(runs[-1]) == _MOST or not _follows(runs[-1][-1], product)):
                runs.append([])
            runs[-1].append(product)
    return [run for run in runs if len(run) > 1]


def _fixed(node: Node) -> bool:
    """Whether a tensor's sizes and its place in its storage are the same at each run."""
    value = node.meta["val"]
    return all(isinstance(number, int) for number in (*value.shape, value.storage_offset()))


def _follows(one: _Product, other: _Product) -> bool:
    """Whether the other's weight and bias begin where this one's end."""
    pairs = [(one.weight, other.weight)]
    if one.bias is not None:
        if not {one.bias.op, other.bias.op} <= {"placeholder", "get_attr"}:
            return False
        pairs.append((one.bias, other.bias))
    return all(_adjacent(first.meta["val"], second.meta["val"]) for first, second in pairs)


def _call(graph: Graph, like: Node, target, args: tuple, value: torch.Tensor) -> Node:
    """A new node that makes `value` and gets the source location of `like`."""
    node = graph.call_function(target, args)
    node.meta = {**like.meta, "val": value}
    return node


def _merge(graph: Graph, run: Sequence[_Product]) -> None:
    """Replace the products by one of all, and their results by parts of it, contiguous if needed.

    Inductor copies a part only where something needs it to be contiguous.
    """
    filled = (None,) * (_MOST - len(run))
    weights, biases = (p.weight for p in run), (p.bias for p in run)
    args = run[0].input, *weights, *filled, *biases, *filled, "", run[0].precision
    first = min(product.node for product in run)
    with graph.inserting_before(first):
        width = sum(p.value.shape[-1] for p in run)
        whole = run[0].value.new_empty((*run[0].value.shape[:-1], width))
        merged = _call(graph, first, _MERGED, args, whole)
    begin = 0
    for product in run:
        end = begin + product.value.shape[-1]
        with graph.inserting_before(product.node):
            view = whole[..., begin:end]
            cut = merged, -1, begin, end
            part = _call(graph, product.node, torch.ops.aten.slice.Tensor, cut, view)
            own = _call(graph, product.node, torch.ops.aten.clone.default, (part,), product.value)
            own.kwargs = {"memory_format": torch.contiguous_format}
        product.node.replace_all_uses_with(own)
        begin = end


def _gate(graph: Graph, gate: _Product, up: _Product) -> bool:
    """Replace both products by activation(gate) * up, if that is the only use of both."""
    end, word = _activation(gate.node)
    if word not in GATES or gate.bias is not None or list(up.node.users) != list(end.users):
        return False
    (product,) = end.users
    if product.target is not torch.ops.aten.mul.Tensor or set(product.args) != {end, up.node}:
        return False
    if gate.value.shape != up.value.shape:  # one is broadcast
        return False
    with graph.inserting_before(product):
        rest = None, None, None, None, GATES[word], gate.precision
        args = gate.input, gate.weight, up.weight, *rest
        product.replace_all_uses_with(_call(graph, product, _MERGED, args, product.meta["val"]))
    return True


def _activate(graph: Graph, product: _Product) -> None:
    """Turn the activation that follows a product into its epilogue, if there is one."""
    end, word = _activation(product.node)
    if word is None:
        return
    rest = "auto", product.precision, ACCUMULATE[product.value.dtype], product.value.dtype
    then = EpilogueInputs(product.bias, activation=word, beta=0.0)
    args = product.input, product.other, *then, *rest
    with graph.inserting_before(end):
        end.replace_all_uses_with(_call(graph, end, GEMM, args, end.meta["val"]))


# Activations, recognised by their values


_ATEN = torch.ops.aten
#: What the formulas of activations consist of. All but relu are smooth: a function with steps or
#: roundings could equal an activation at every argument tried, and differ in between.
_PARTS = {
    *(_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.neg.default),
    *(_ATEN.reciprocal.default, _ATEN.pow.Tensor_Scalar, _ATEN.exp.default, _ATEN.erf.default),
    *(_ATEN.tanh.default, _ATEN.sigmoid.default, _ATEN.relu.default),
}
_CASTS = (torch.ops.prims.convert_element_type.default, _ATEN.clone.default)
#: The most nodes of a formula.
_LONGEST = 24
#: Product type -> how far two formulas of the same function may differ.
_APART = {torch.float64: 1e-13, torch.float32: 1e-7}


def _activation(product: Node) -> tuple[Node, str | None]:
    """The node that is an activation of `product` and its only use; and its name.

    The graph contains its definition, decomposed by torch, or the model's own formula.
    """
    nodes = [product]
    while len(nodes) <= _LONGEST:
        users = {user for node in nodes for user in node.users if user not in nodes}
        inner = {user for node in nodes[:-1] for user in node.users}
        if len(nodes) > 1 and inner <= set(nodes):
            end, value = nodes[-1], nodes[-1].meta.get("val")
            same = value is not None and value.dtype == product.meta["val"].dtype
            if same and (word := _word(nodes)) is not None:
                return end, word
        if not users or not _elementwise(following := min(users), nodes):
            break
        nodes.append(following)
    return product, None


def _elementwise(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether the node computes each element from one element of one of `nodes` alone.

    A cast does so if its type holds all values of the first node's type, which it may follow.
    """
    if node.op != "call_function" or not set(node.all_input_nodes) <= set(nodes):
        return False
    if node.target in _CASTS:
        made = node.meta["val"].dtype
        return made == torch.promote_types(made, nodes[0].meta["val"].dtype)
    relu: Any = node.target is _ATEN.clamp_min.default and node.args[1] == 0
    return relu or node.target in _PARTS


@functools.cache
def _arguments() -> torch.Tensor:
    """Values from 1e-12 to beyond fp32's range, where similar functions differ."""
    kinds: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    sizes = torch.logspace(-12, 39, 1021, **kinds), torch.linspace(math.pi / 999, 13, 1499, **kinds)
    each = torch.cat([*sizes, torch.tensor([0, math.inf, math.nan], **kinds)])
    return torch.cat([each, -each])


def _word(nodes: Sequence[Node]) -> str | None:
    """The name of the activation that the nodes after the first compute from it, tried in fp64."""
    with inductor.no_fake_tensors(), torch.no_grad():
        x = _arguments()
        made: dict[Node, Any] = {nodes[0]: x}
        for node in nodes[1:]:
            target: Any = node.target
            args, named = torch.fx.node.map_arg((node.args, node.kwargs), made.__getitem__)
            try:
                made[node] = args[0] if target in _CASTS else target(*args, **named)
            except Exception:  # a formula that fails is no activation
                return None
        found = made[nodes[-1]]
        if found.shape != x.shape or found.dtype != x.dtype:
            return None
        rtol = _APART.get(nodes[0].meta["val"].dtype, 1e-5)
        for word in filter(None, ACTIVATIONS):
            want = activated(x, word)
            near = (found - want).abs() <= rtol * want.abs() + 1e-13 * x.abs()
            if (near | (found == want) | (found.isnan() & want.isnan())).all():
                return word
    return None


inductor.add_pass(GEMM, fuse)
