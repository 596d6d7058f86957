"""How code compiled by Inductor calls an operator directly, without torch's dispatcher; and where
its graphs can be changed.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.torch_version import TorchVersion

from ..namespace import NAMESPACE

#: Whether AOTInductor's packages pass wrong types on: pytorch/pytorch#169157.
_MIXES_TYPES = TorchVersion(torch.__version__) < "2.12"
#: Operators in a graph, and the change to make to a graph with one.
_passes: list[tuple[torch._ops.OpOverload, Callable[[torch.fx.Graph], None]]] = []


def add_pass(operator: torch._ops.OpOverload, change: Callable[[torch.fx.Graph], None]) -> None:
    """Make Inductor call `change`, once, with each graph that it compiles with this operator.

    The graph is functional and below autograd. If Inductor's parts are not as in torch 2.11 to
    2.14, `change` isn't called, and a warning says so.
    """
    _passes.append((operator, change))


def is_inference() -> bool:
    """Whether no output of the code that is being compiled has a gradient."""
    context = torch._guards.TracingContext.try_get()
    outputs = getattr(getattr(context, "fw_metadata", None), "output_info", None)
    return outputs is not None and not any(output.requires_grad for output in outputs)


def no_fake_tensors() -> contextlib.AbstractContextManager:
    """A block in which tensors have values, although a graph is being compiled."""
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
    """Make Inductor, once loaded, call `name(*arguments, out=...)` instead of `operator`.

    `name` is what `called_by_inductor` was given. The operator takes that many `tensors`, then the
    `optional` ones, then constants. It returns a new tensor; if its last constant is that tensor's
    type, `name` doesn't take it. `name` takes no None for an optional tensor: only those that
    exist, and after the tensors, for each, whether it does. Code that is not Python calls the
    operator itself; so does all code, with a warning, if Inductor's parts are not as in torch 2.11
    to 2.14.
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
    """For code that relies on Inductor's parts: warn of the consequence if they have changed."""
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        warnings.warn(
            f"tritemm doesn't support the Inductor of torch {torch.__version__} ({error}). "
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
                    f"AOTInductor of torch {torch.__version__} passes {operator} other types than "
                    "it should. Build the package with torch 2.12 or newer"
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
