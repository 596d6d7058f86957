"""tritemm: tensor-core matrix multiplication in Triton, from the naive kernel upwards.

`matmul`, `linear`, `addmm`, `baddbmm` and `mv` mean what torch's functions of these names mean.
`enable` routes torch's own calls to tritemm. `Linear` is a `torch.nn.Linear` that runs these
kernels, and `convert` makes the layers of an existing model run them. `ladder` lists the kernels;
`explain` says which one a call would run; `tune` times them and keeps the fastest; `warmup`
compiles ahead. Without a GPU the kernels run in Triton's interpreter. Without Triton the import
raises ImportError, which says what is missing; `python -m tritemm env` lists what is installed.
"""

import logging
import sys

from .machine.needs import why_not
from .version import __version__ as __version__

logging.getLogger("tritemm").addHandler(logging.NullHandler())  # the user's handlers tell, if any
_missing = why_not()
# Python imports this to find `python -m tritemm`, which reports the same without a traceback.
_by_command = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("tritemm", "-mtritemm")
if _missing and not _by_command:
    raise ImportError(_missing, name=__name__)
if not _missing:
    from .machine.interpreter import decorating

    with decorating():
        from . import layers as layers
        from . import nn
        from .api import tuning
        from .api.blas import addmm, baddbmm, linear, mv
        from .api.einsum import einsum
        from .api.explain import explain
        from .api.groups import grouped_mm
        from .api.matmul import matmul
        from .api.moe import moe
        from .api.quantize import Quantized, quantize
        from .api.row_parallel import row_parallel_linear
        from .api.scaled import scaled_grouped_mm, scaled_mm
        from .api.symmetric import newton_schulz, syrk
        from .api.tuning import tune
        from .api.warming import warmup
        from .nn import Linear, convert
        from .op import distributed as distributed
        from .problem.config import Config
        from .rungs import ladder
        from .takeover.integrate import disable, enable, enabled, set_batch_invariant_mode

#: Whichever kernel is chosen, the same call gives the same bits on the same GPU, run after run:
#: sums have a fixed order, and nothing is added atomically into a result. The choice is the same
#: every time too, until `tune` changes it. This is a fact to assert, not an option to set. With
#: `matmul(batch_invariant=True)` the bits don't depend on the number of rows either.
deterministic: bool = True

__all__ = [
    "Config",
    "Linear",
    "Quantized",
    "addmm",
    "baddbmm",
    "convert",
    "deterministic",
    "disable",
    "einsum",
    "enable",
    "enabled",
    "explain",
    "grouped_mm",
    "ladder",
    "linear",
    "matmul",
    "moe",
    "mv",
    "newton_schulz",
    "nn",
    "quantize",
    "row_parallel_linear",
    "scaled_grouped_mm",
    "scaled_mm",
    "set_batch_invariant_mode",
    "syrk",
    "tune",
    "tuning",
    "warmup",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
