"""What is computed once for all products of a kind, and the products themselves.

A kind is everything about a call except the data: sizes, strides, types, alignment, options,
device. Its plan is the problem, the chosen kernel and config, and the launches: copies of operands
that the kernel can't read, then the kernel. Nothing here holds a tensor or depends on an address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import dispatch, plan
from ..dispatch.request import for_gradients
from ..dtypes import has_epilogue, resolve, wide
from ..kernels import residues
from ..kernels.pack import copied_bytes
from ..problem import (
    ACCUMULATE,
    ALONE,
    INTERPRETER,
    NOTHING,
    PRODUCTS,
    Besides,
    EpilogueInputs,
    Problem,
    after,
    form_of,
    meet,
    result_shape,
    span,
)
from ..runtime import fast_path
from ..runtime.binding import Call
from ..runtime.bounded import Bounded
from ..runtime.launches import Launches
from ..runtime.sizes import known
from ..runtime.torch_private import untraced
from . import slow

_LOG = logging.getLogger("tritemm.dispatch")
#: Kinds of gradients that a plan remembers.
GRADIENTS = 16


class Plan(fast_path.Kind):
    """One kind of product. It is built from tensors of that kind and multiplies any others.

    `options`: kernel, precision, accumulator and result type, as the operators take them.
    """

    def __init__(self, a, b, c, options: tuple, problem: Problem):
        word, precision, accumulate, _ = self.options = options
        self.choice: dispatch.Choice | Any = dispatch.choose_whole(problem, word)
        self.problem = self.choice.problem if self.choice else problem
        if made := self.choice:
            _LOG.debug("%s: %s, %s: %s", problem, made.kernel.name, made.config, made.why)
        else:
            _LOG.debug("%s: in parts, a product and then torch's activation", problem)
        self.twice = bool(self.choice and self.problem.is_split(self.choice.config.PACK))
        #: Whether no kernel does all of it: then the product is its own kind, and torch ends it.
        self.apart = self.choice is None
        self.launches: Launches | None = None
        self.size, self.stride, self.dtype = tuple(c.shape), c.stride(), c.dtype
        self.spans = span(a), span(b), span(c)
        #: Shape, strides and type of both operands, as the caller passed them.
        self.operands = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (a, b))
        #: The first three options of the gradients' products.
        self.for_gradients = for_gradients(word), precision, accumulate
        #: What computes both operands' gradients, given the addresses of a, b and the incoming
        #: gradient; and which of them it doesn't compute, if any.
        self.gradients: dict[tuple, tuple[list[fast_path.Step | None], list]] = Bounded(GRADIENTS)

    def __call__(
        self, a, b, c, then: EpilogueInputs, views: Sequence[Any], besides: Besides
    ) -> None:
        """Write a @ b, with the epilogue `then`, into `c`, on its device; all are of this kind.

        `views` come from `plan.matrices`. Not for a kind that is made `apart`.
        """
        pairs = zip(views, (a, b, c, *then.tensors), strict=True)
        copied = any(view.data_ptr() != t.data_ptr() for view, t in pairs)
        x, y, z, *tensors = views
        kernel, config = self.choice.kernel, self.choice.config
        if self.problem.device == INTERPRETER:
            slow.warning.count(self.problem, dispatch.predict(kernel, self.problem, config))
        more = *besides.tensors, *tensors, *then.factors
        calls = plan.run(kernel, self.problem, config, x, y, z, *more)
        if z.data_ptr() != c.data_ptr():  # batch strides that no kernel supports
            c.copy_(z.view(c.shape))
        elif not copied and None not in calls:
            self.launches = self._prepared(c.get_device(), calls, len(more))

    def _prepared(self, device: int, calls: Sequence[Call | Any], more: int) -> Launches:
        """`calls` are what `run` returned: the copies if any, then the kernel.

        `more` inputs come after a, b and c.
        """
        kernel, config = self.choice.kernel, self.choice.config
        names = config.PACK
        room = kernel.workspace and kernel.workspace(config.view(self.problem), config)
        split = self.problem.is_split(names)
        if split and self.problem.by_residues:
            made = residues.made_bytes(self.problem)
            placed = zip(calls, residues.places(3 + len(made)), strict=True)
            return Launches(device, [call.placed(at) for call, at in placed], made, room)
        copies = {name: 3 + more + i for i, name in enumerate(names)}
        operands = [copies.get("a", 0), copies.get("b", 1)]
        work = 3 + more + len(names)
        given = tuple(range(3, 3 + more))
        again, flag = [], (work,) * split
        if flag:
            *calls, last = calls
            again = [last.placed((0, 1, 2, *given, *flag))]
            given, work = (*given, *flag), work + 1
        *packing, call = calls
        packing = [one.placed((0, operands[0], 1, operands[1], *flag)) for one in packing]
        if config.SWAP:
            operands.reverse()
            given = plan.swapped(self.problem, given)
        call = call.placed((*operands, 2, *given, work, work + 1))
        moved = copied_bytes(self.problem, names)
        return Launches(device, [*packing, call, *again], moved, room)


def key_of(a, b, out, options, then: EpilogueInputs, besides: Besides) -> tuple[tuple, tuple]:
    """`fast_path.kind_of` for a product with arguments besides its operands and epilogue, too."""
    key, addresses = fast_path.kind_of(a, b, out, options, then)
    if besides is ALONE:
        return key, addresses
    more = [t.data_ptr() for t in besides.tensors]
    return ("besides", key, besides.key()), (*addresses[:3], *more, *addresses[3:])


@untraced
def product(
    a, b, out: torch.Tensor | None, options: tuple, then: EpilogueInputs = NOTHING,
    besides: Besides = ALONE,
) -> torch.Tensor:  # fmt: skip
    """a @ b for `a` [..., M, K] and `b` [..., K, N], batches broadcast, with the epilogue `then`.

    If `besides` cuts rows or K into groups, rows after the last group are zeros. The result is
    `out` if given. `options`: see `Plan`. Operands aren't checked, and autograd records nothing,
    but a write to `out` bumps its version. Raises the errors of `dispatch.choose`.
    """
    key, addresses = key_of(a, b, out, options, then, besides)
    kind: Any = fast_path.KNOWN.get(key)
    if out is not None:
        fast_path.check_writable(out)
        # FFMA may write it a second time, after the residual was overwritten.
        twice = resolve(options[1], a.dtype) in PRODUCTS if kind is None else kind.twice
        if any(meet(t, out) for t in (a, b, *besides.tensors)) or then.met_by(out, twice):
            return out.copy_(product(a, b, None, options, then, besides))
    ends = has_epilogue(a.dtype, options[1]) or besides.scales is not None
    if then is not NOTHING and (not ends or a.shape[-1] == 0 or then.alpha == 0):

        def multiply(a, b, options):
            return product(a, b, None, options, NOTHING, besides)

        result = in_parts(a, b, options, then, multiply, besides)
        return result if out is None else out.copy_(result)
    if kind is not None and kind.launches is not None and fast_path.AVAILABLE:
        made = fast_path.multiply(kind, addresses, out)
        if made is not None:
            return made
    c = out
    if c is None:
        shape = result_shape(a, b, then.activation, *besides.groups)
        c = torch.empty(shape, dtype=options[-1], device=a.device)
    if not plan.is_trivial(min((a.shape[-1], *besides.groups)), c):  # no K, or no groups
        _, precision, accumulate, _ = options
        more = form_of(a, b) if besides.groups else "", besides.scales, besides.in_blocks
        problem, *views = plan.matrices(a, b, c, precision, accumulate, then, *more)
        if kind is None:
            kind = Plan(a, b, c, options, problem)
        if kind.apart:
            argument = product(a, b, None, options, then.before(), besides)
            after(argument, then.activation, then.residual, then.beta, c)
        else:
            kind(a, b, c, then, views, besides)
        fast_path.KNOWN[key] = kind
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return c


def of_groups(a, b, out, options: tuple, then: EpilogueInputs, besides: Besides) -> torch.Tensor:
    """`product` with groups; if columns are cut, the transposed product, whose rows are cut."""
    if form_of(a, b) != "n":
        return product(a, b, out, options, then, besides)
    c = a.new_empty(a.shape[1], b.shape[1], dtype=options[-1]) if out is None else out
    product(b.mT, a.mT, c.mT, options, then, besides.turned())
    return c


def in_parts(
    a, b, options: tuple, then: EpilogueInputs, multiply: Callable, besides: Besides = ALONE
) -> torch.Tensor:
    """`multiply(a, b, options)` in the accumulator's type, with `then` computed by torch.

    With alpha = 0 the product counts as zeros, whatever the operands hold: NaN times 0 would be
    NaN. The same is true with K = 0, whatever alpha is.
    """
    *how, accumulate, dtype = options
    scaled = torch.float32 if besides.scales else None
    accumulator = scaled or wide(accumulate or ACCUMULATE[a.dtype])
    if then.alpha == 0 or known(a.shape[-1] == 0):
        made = a.new_zeros(result_shape(a, b, "", *besides.groups), dtype=accumulator)
        then = then._replace(alpha=1.0)
    else:
        made = multiply(a, b, (*how, accumulate, accumulator))
    if besides.groups and then.bias is not None:
        then = then._replace(bias=_of_groups(then.bias, made, besides.offs))
    return then.of(made, dtype)


def _of_groups(bias, made, offs) -> torch.Tensor:
    """The bias [G, N] of each group, or of each row's group: zeros after the last group."""
    if made.dim() == 3:
        return bias.unsqueeze(1)
    rows = torch.arange(len(made), dtype=torch.int32, device=made.device)
    with_rest = torch.cat([bias, bias.new_zeros(1, bias.shape[1])])
    return with_rest[torch.searchsorted(offs, rows, right=True)]
