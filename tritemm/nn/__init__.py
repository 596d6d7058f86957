"""Modules over `tritemm.linear`, and `convert`, which turns a model's layers into them in place.

A layer is converted by changing its `__class__`, never by putting another one in its place. So
whoever holds it still holds it: its parent and a tied twin, hooks, optimizers, the wrappers of DDP,
FSDP and PEFT, `torch.compile`. Its Parameters, buffers, hooks and state dict are untouched, it
stays an instance of its former class, and `restore` gives that class back. Modules that aren't
layers are never touched; what products may be one is found in the graphs that torch compiles.
"""

from .convert import convert as convert
from .convert import restore as restore
from .experts import Experts as Experts
from .float8 import Float8Linear as Float8Linear
from .int4 import Int4Weight as Int4Weight
from .layers import Linear as Linear
from .registered import register_experts as register_experts
from .report import Entry as Entry
from .report import Report as Report
