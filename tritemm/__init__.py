"""tritemm: tensor-core matrix multiplication in Triton, from the naive kernel upwards.

`matmul` multiplies like `torch.matmul`; `ladder` lists the kernels it chooses from; `explain`
says what it would choose; `tune` times them on request; `warmup` compiles ahead; `enable` routes
torch's own calls here. Without a GPU the kernels run in Triton's interpreter.
"""

from .interpreter import decorating

with decorating():
    from . import tuning
    from .api import explain, matmul
    from .blas import addmm, baddbmm, linear, mv
    from .config import Config
    from .integrate import disable, enable, enabled, set_batch_invariant_mode
    from .rungs import ladder
    from .tuning import tune
    from .version import __version__ as __version__
    from .warming import warmup

#: Every kernel, whatever is chosen, gives the same bits for the same call on the same GPU, run
#: after run: sums have a fixed order, and nothing is added atomically into a result. The choice is
#: the same every time too, until `tune` changes it. True, and there is no switch: it is a fact to
#: assert, not an option to set. Bits that also don't depend on the number of rows are
#: `matmul(batch_invariant=True)`.
deterministic: bool = True

__all__ = [
    "Config",
    "addmm",
    "baddbmm",
    "deterministic",
    "disable",
    "enable",
    "enabled",
    "explain",
    "ladder",
    "linear",
    "matmul",
    "mv",
    "set_batch_invariant_mode",
    "tune",
    "tuning",
    "warmup",
]
