"""How code compiled by Inductor calls an operator, straight and not through torch's dispatcher; and
where what it makes of a graph can be changed.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.torch_version import TorchVersion

from ..namespace import NAMESPACE

#: Whether AOTInductor's packages hand types on as others: pytorch/pytorch#169157.
_MIXES_TYPES = TorchVersion(torch.__version__) < "2.12"
#: Operators of a graph, and what is to be done to a graph with one.
_passes: list[tuple[torch._ops.OpOverload, Callable[[torch.fx.Graph], None]]] = []


def add_pass(operator: torch._ops.OpOverload, change: Callable[[torch.fx.Graph], None]) -> None:
    """Have Inductor call `change`, once, with each graph that it compiles with this operator.

    The graph is functional and below autograd. Where Inductor's parts are not as they were in torch
    2.11 to 2.14, it isn't called, and a warning says so.
    """
    _passes.append((operator, change))


def is_inference() -> bool:
    """Whether nothing that the code returns whose graph is compiled has a gradient."""
    context = torch._guards.TracingContext.try_get()
    outputs = getattr(getattr(context, "fw_metadata", None), "output_info", None)
    return outputs is not None and not any(output.requires_grad for output in outputs)


def no_fake_tensors() -> contextlib.AbstractContextManager:
    """Where tensors have values, although a graph is compiled."""
    return torch._subclasses.fake_tensor.unset_fake_temporarily()


def _register_passes() -> None:
    from torch._inductor.fx_passes.post_grad import pass_patterns
    from torch._inductor.pattern_matcher import CallFunctionVarArgs, register_graph_pattern

    mark = f"_{NAMESPACE}_changed"
    while _passes:
        operator, change = _passes.pop()

        def once(match, *args, change=change, **named):
            if not hasattr(match.graph, mark):
                setattr(match.graph, mark, True)
                change(match.graph)

        register_graph_pattern(CallFunctionVarArgs(operator), pass_dict=pass_patterns[-1])(once)


def lower(operator, name: str, tensors: int = 2, optional: int = 0) -> None:
    """Have Inductor, where it is loaded, call `name(*arguments, out=...)` in place of `operator`.

    `name` is what `called_by_inductor` was given. The operator takes so many `tensors`, then those
    that are `optional`, then constants. It returns a new tensor; if its last constant is the type
    of that, `name` takes all but that. It takes no None for an optional tensor: only those that are
    there, and behind the tensors whether each is. In code that is not Python the operator itself is
    called, and where Inductor's parts are not as they were in torch 2.11 to 2.14, with a warning.
    """
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None:
        return
    if _passes:
        with _as_expected("products of one input are not merged in compiled code"):
            _register_passes()
    if operator in lowering.lowerings:
        return
    with _as_expected("compiled code calls operators through torch's dispatcher"):
        lowering.register_lowering(operator, type_promotion_kind=None)(
            _lowering(operator, name, tensors, optional, lowering)
        )


@contextlib.contextmanager
def _as_expected(otherwise: str) -> Iterator[None]:
    """For what relies on Inductor's parts: warn of what is the case where they have changed."""
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        warnings.warn(
            f"tritemm doesn't know the Inductor of torch {torch.__version__} ({error}). "
            f"Results are right, but {otherwise}",
            stacklevel=2,
        )


def _lowering(operator, name: str, tensors: int, optional: int, lowering):
    from torch._inductor import ir
    from torch._inductor.utils import convert_shape_to_inductor
    from torch._inductor.virtualized import V

    usual = lowering.fallback_handler(operator, add_to_fallback_set=False)
    typed = operator._schema.arguments[-1].name == "out_dtype"

    def lowered(*arguments):
        if V.graph.cpp_wrapper:
            if typed and V.graph.aot_mode and _MIXES_TYPES:
                raise RuntimeError(
                    f"AOTInductor of torch {torch.__version__} hands {operator} other types than "
                    "it is given. Make the package with torch 2.12 or newer"
                )
            return usual(*arguments)
        there = [t is not None for t in arguments[tensors : tensors + optional]]
        inputs = [t for t in arguments[: tensors + optional] if t is not None]
        constants = arguments[tensors + optional : len(arguments) - typed]
        result = V.graph.current_node.meta["val"]
        layout = ir.FixedLayout(
            result.device, result.dtype,
            convert_shape_to_inductor(result.shape), convert_shape_to_inductor(result.stride()),
        )  # fmt: skip
        call = ir.ExternKernelOut(
            layout=layout,
            inputs=[ir.ExternKernel.realize_input(t) for t in inputs],
            constant_args=(*there, *constants),
            python_kernel_name=f"torch.ops.{NAMESPACE}.{name}",
        )
        return ir.TensorBox.create(call)

    return lowered
