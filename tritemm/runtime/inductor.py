"""How code compiled by Inductor calls an operator: straight, not through torch's dispatcher."""

from __future__ import annotations

import contextlib
import sys


def lower(operator, name: str) -> None:
    """Have Inductor, where it is loaded, call `name(*arguments, out=...)` in place of `operator`.

    `name` is dotted, and begins with torch. The operator takes two tensors, then constants, the
    last of which is the type of the new tensor that it returns. Where Inductor's parts are not as
    they were in torch 2.10 to 2.13, and in code that is not Python, the operator itself is called.
    """
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is None or operator in lowering.lowerings:
        return
    with contextlib.suppress(AttributeError, ImportError, TypeError):
        lowering.register_lowering(operator, type_promotion_kind=None)(
            _lowering(operator, name, lowering)
        )


def _lowering(operator, name: str, lowering):
    from torch._inductor import ir
    from torch._inductor.utils import convert_shape_to_inductor
    from torch._inductor.virtualized import V

    usual = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(a, b, *constants):
        if V.graph.cpp_wrapper:
            return usual(a, b, *constants)
        result = V.graph.current_node.meta["val"]
        layout = ir.FixedLayout(
            result.device, result.dtype,
            convert_shape_to_inductor(result.shape), convert_shape_to_inductor(result.stride()),
        )  # fmt: skip
        call = ir.ExternKernelOut(
            layout=layout,
            inputs=[ir.ExternKernel.realize_input(t) for t in (a, b)],
            constant_args=constants[:-1],  # all but the result's type
            python_kernel_name=name,
        )
        return ir.TensorBox.create(call)

    return lowered
