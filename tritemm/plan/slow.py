"""The warning that Triton's interpreter is slow."""

from __future__ import annotations

import warnings

from ..problem import Problem


class Slow:
    """Warns, once per process, that the interpreter is slow."""

    #: Seconds that all products may take together before the warning.
    LONG = 5.0
    seconds, told = 0.0, False

    def count(self, problem: Problem, seconds: float) -> None:
        """Count a product that is about to take this long."""
        self.seconds += seconds
        if self.told or self.seconds < self.LONG:
            return
        self.told = True
        before = self.seconds - seconds
        more = f", after {before:.0f} s for those before it" if before >= 1 else ""
        warnings.warn(
            f"tritemm runs its kernels in Triton's interpreter, on the CPU: {problem} takes about "
            f"{seconds:.2g} s{more}. The interpreter shows that kernels are right, on small "
            "problems; torch's own products take milliseconds (after tritemm.disable, if calls are "
            "routed), and compiled kernels need an NVIDIA GPU. This warning appears once",
            stacklevel=2,
        )


#: The instance of this process.
warning = Slow()
