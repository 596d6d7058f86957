"""tritemm: tensor-core matrix multiplication in Triton, from the naive kernel upwards.

`matmul` multiplies like `torch.matmul`; `ladder` lists the kernels it chooses from; `explain`
says what it would choose. Without a CUDA device the kernels run in Triton's interpreter, which
has to be chosen before the first kernel is decorated, hence here.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from .api import explain, matmul
from .rungs import ladder

__version__ = "0.1.0"
__all__ = ["explain", "ladder", "matmul"]
