"""Hand-written CUDA twins of the Triton rungs, behind the same contract (`tritemm.spec.Kernel`).

`matmul` multiplies by the kernel that is named, `grouped_mm` groups of rows, and `scaled_mm` 8-bit
operands with scales; `ladder` lists the kernels; `types` has every instruction of the tensor cores.
Nothing is compiled before it is called.
"""

from .api import grouped_mm, ladder, matmul, scaled_mm

__all__ = ["grouped_mm", "ladder", "matmul", "scaled_mm"]
