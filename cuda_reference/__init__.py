"""Hand-written CUDA twins of the Triton rungs, behind the same contract (`tritemm.spec.Kernel`).

`matmul` multiplies by the kernel that is named, and `grouped_mm` groups of rows; `ladder` lists the
kernels; `types` has every instruction of the tensor cores. Nothing is compiled before it is called.
"""

from .api import grouped_mm, ladder, matmul

__all__ = ["grouped_mm", "ladder", "matmul"]
