"""Hand-written CUDA twins of the Triton rungs, behind the same contract (`tritemm.spec.Kernel`).

`matmul` multiplies by the kernel that is named, `ladder` lists them; `types` has every instruction
of the tensor cores. Nothing is compiled before it is called.
"""

from .api import ladder, matmul

__all__ = ["ladder", "matmul"]
