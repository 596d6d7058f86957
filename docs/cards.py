"""The cards whose rows the pages show."""

from perf.views import Selection

#: The one that the kernels are tuned on: what a page shows of a view is its own, unless it says
#: otherwise, whichever card was measured last.
TUNED = Selection(gpu="NVIDIA H200")
#: Another that was measured.
OTHER = Selection(gpu="NVIDIA H100 80GB HBM3")
