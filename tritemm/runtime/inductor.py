"""How code compiled by Inductor calls an operator: straight, not through torch's dispatcher."""

from __future__ import annotations

import contextlib
import sys


def lower(operator, name: str, tensors: int = 2, optional: int = 0) -> None:
    """Have Inductor, where it is loaded, call `name(*arguments, out=...)` in place of `operator`.

    `name` is dotted, and begins with torch. The operator takes so many `tensors`, then those that
    are `optional`, then constants. It returns a new tensor; if its last constant is the type of
    that, `name` takes all but that. It takes no None for an optional tensor: only those that are
    there, and behind the tensors whether each is. Where Inductor's parts are not as they were in
    torch 2.10 to 2.14, and in code that is not Python, the operator itself is called.
    """
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None or operator in lowering.lowerings:
        return
    with contextlib.suppress(AttributeError, ImportError, TypeError):
        lowering.register_lowering(operator, type_promotion_kind=None)(
            _lowering(operator, name, tensors, optional, lowering)
        )


def _lowering(operator, name: str, tensors: int, optional: int, lowering):
    from torch._inductor import ir
    from torch._inductor.utils import convert_shape_to_inductor
    from torch._inductor.virtualized import V

    usual = lowering.fallback_handler(operator, add_to_fallback_set=False)
    typed = operator._schema.arguments[-1].name == "out_dtype"

    def lowered(*arguments):
        if V.graph.cpp_wrapper:
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
            python_kernel_name=name,
        )
        return ir.TensorBox.create(call)

    return lowered
