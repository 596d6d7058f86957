"""Every tensor-core instruction of the type table, one tile at a time.

>>> from cuda_reference import types
>>> entry = types.find("wmma.m8n8k4.row.col.rz.f64.f64.f64.f64")
>>> d = types.multiply(entry, a, b, c)  # [8, 4], [4, 8], [8, 8] on a GPU
"""

from .run import multiply, why_not
from .table import TABLE, Entry, find

__all__ = ["TABLE", "Entry", "find", "multiply", "why_not"]
