"""Modules that run `tritemm.linear`, and `convert`, which makes a model's layers do so in place.

A layer is converted by changing its `__class__`; it is never replaced by another object. So every
reference to it stays valid: its parent's, a tied twin's, those of hooks, optimizers, the wrappers
of DDP, FSDP and PEFT, and `torch.compile`. Its Parameters, buffers, hooks and state dict don't
change, it remains an instance of its former class, and `restore` gives that class back. Modules
that aren't layers are never changed; the graphs that torch compiles show which products can merge.
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
