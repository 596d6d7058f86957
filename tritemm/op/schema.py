"""The schema of the one operator, with every option of a product."""

from __future__ import annotations

from ..problem import NOTHING, EpilogueInputs
from ..runtime.operators import define

_OPERANDS = "Tensor a, Tensor b"
#: activation(alpha * product + bias) + beta * residual: the fields of an `EpilogueInputs`.
_EPILOGUE = "Tensor? bias, Tensor? residual, str activation, float alpha, float beta, "
_EPILOGUE += "bool symmetric"
_OPTIONS = "str kernel, str? precision, ScalarType? accumulate"
_ALL = f"{_OPERANDS}, {_EPILOGUE}, {_OPTIONS}"
#: The result is a new tensor, or is written to `out`, which must have its shape.
GEMM = define(f"gemm({_ALL}, ScalarType out_dtype) -> Tensor")
GEMM_OUT = define(f"gemm_out({_ALL}, *, Tensor(a!) out) -> ()")


def parted(args: tuple) -> tuple[EpilogueInputs, tuple]:
    """The epilogue and the options, from the operator's arguments after a and b."""
    return EpilogueInputs(*args[: len(NOTHING)]), args[len(NOTHING) :]
