"""The small kernels of docs/tutorial/00_primer.md: `python -m docs.primer` runs them.

They run in Triton's interpreter, on CPU tensors, where there is no GPU.
"""

from tritemm.machine import interpreter

with interpreter.decorating():
    from . import kernels as kernels
