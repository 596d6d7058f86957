"""The warning that Triton's interpreter takes its time."""

from __future__ import annotations

import warnings

from ..problem import Problem


class Slow:
    """Warns, once in a process, that the interpreter takes its time."""

    #: Seconds of all products so far, before a warning says so.
    LONG = 5.0
    seconds, told = 0.0, False

    def count(self, problem: Problem, seconds: float) -> None:
        """A product begins that takes so long."""
        self.seconds += seconds
        if self.told or self.seconds < self.LONG:
            return
        self.told = True
        before = self.seconds - seconds
        more = f", after {before:.0f} s for those before it" if before >= 1 else ""
        warnings.warn(
            f"tritemm runs its kernels in Triton's interpreter, on the CPU: {problem} takes about "
            f"{seconds:.2g} s{more}. The interpreter shows that kernels are right, on small "
            "problems; torch's own products take milliseconds (without tritemm.enable, where calls "
            "are routed), and compiled kernels need an NVIDIA GPU. This is said once",
            stacklevel=2,
        )


#: The one of this process.
warning = Slow()
