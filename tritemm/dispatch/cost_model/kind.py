"""What the time of a product depends on beside its sizes: types, layouts, alignment, epilogue."""

from __future__ import annotations

import functools
import math

import torch

from ...arch import gpus
from ...arch.lines import by_tma
from ...problem import GATED, Device, Matrix, Problem
from ...problem.problem import kept
from ...spec import Kernel
from .constants import REGISTERS, Constants

#: Bytes of a line of L2, and of a sector, which is read and written as a whole.
LINE, SECTOR = 128, 32
#: Seconds of an SM for what the epilogue does to an element, measured on an H200: a bias, an
#: activation, a byte of a residual.
_BIAS = 35e-12
_ACTIVATION = {
    "": 0.0, "relu": 10e-12, "gelu": 105e-12, "gelu_tanh": 90e-12, "silu": 75e-12,
    "swiglu": 45e-12, "geglu": 60e-12,
}  # fmt: skip
_RESIDUAL_BYTE = 55e-12
#: Bytes that an SM's loads bring per clock.
_BYTES = 56


class Kind:
    """Problems that differ in nothing but their sizes; the arguments are what `kind_of` asks."""

    def __init__(
        self,
        device: Device,
        dtype: torch.dtype,
        precision: str,
        element: int,  # bytes of C for an element of the product
        layouts: str,
        wide: tuple[bool, bool],  # whether loads of A and B are 16 bytes wide
        pitches: tuple[int, int],  # bytes that divide the distance of their lines, up to LINE
        c_major: str,
        epilogue: tuple[bool, str, int],  # a bias; an activation; bytes of a residual's element
    ):
        bias, activation, residual = epilogue
        self.itemsize, self.element, self.layouts, self.pitches = (
            dtype.itemsize, element, layouts, pitches
        )  # fmt: skip
        self.narrow = tuple(not each for each in wide)
        rate = gpus.flop_rate(dtype, precision, device)
        self.flop = device.sms / rate  # s of an SM for a FLOP at the dense rate
        #: Energy of a FLOP relative to one of 16-bit operands.
        self.hungry = gpus.flop_rate(torch.float16, "ieee", device) / rate
        # s of an element's load, where none was timed: what an SM reads from L2 at best.
        self.load = self.itemsize / (_BYTES * gpus.physics(device).clock)
        self.types = precision if dtype == torch.float32 else str(dtype).rpartition(".")[2]
        if self.itemsize == 2:
            self.types = "16-bit"
        # The tensor cores read only 16-bit operands along M or N; others are transposed first.
        turns = dtype == torch.int8 or self.types[:2] in ("tf", "bf")
        self._turned = turns * (layouts[0] != "N"), turns * (layouts[1] != "T")
        # Columns of B that are requested together: those of a line, where it is stored by rows.
        self.along = LINE // self.itemsize if layouts[1] == "N" else 1
        self.by_threads, self.by_rows = not by_tma(c_major), c_major in ("N", "n")
        self.epilogue = (  # seconds of an SM for an element
            _BIAS * bias + _ACTIVATION[activation] + _RESIDUAL_BYTE * residual
        )
        self.adds, self.gated = residual > 0, activation in GATED
        self.across = layouts[0] == "T", layouts[1] == "N"  # stored across K
        #: What `columns` keeps of each rung: the constants, and what follows from them.
        self.rows: dict[Kernel, tuple[Constants, tuple[float, ...]]] = {}

    def turned(self, kernel: Kernel) -> int:
        """The number of operands that a rung transposes in shared memory."""
        a, b = self._turned
        return b if kernel.cost.a_registers else a + b

    def word(self, kernel: Kernel) -> str:
        """The name under which k-steps of these types and loads were timed."""
        cost, word = kernel.cost, self.types
        if cost.narrow != 1 and any(self.narrow):
            word += "/narrow-" + "ab"[not self.narrow[0] : 1 + self.narrow[1]]
        if count := self.turned(kernel):
            word += f"/turned-{count}"
        if cost.a_registers and self._turned[0]:
            word += REGISTERS
        return word + (f"/{self.layouts}" if cost.independent_ctas else "")


@kept
def kind_of(view: Problem) -> Kind:
    """The kind of a problem as a kernel sees it."""
    a, b, c, epilogue = view.a, view.b, view.c, view.epilogue
    residual = epilogue.residual.dtype.itemsize if epilogue.residual else 0
    return _kind(
        view.device,
        a.dtype,
        view.precision,
        c.dtype.itemsize // (2 if epilogue.gated else 1),
        a.layout + b.layout,
        (_wide(a), _wide(b)),
        (_pitch(a), _pitch(b)),
        _c_major(c),
        (epilogue.bias is not None, epilogue.activation, residual),
    )


@functools.lru_cache(maxsize=1024)
def _kind(*facts) -> Kind:
    return Kind(*facts)


def _pitch(matrix: Matrix) -> int:
    """The largest power of two, up to a line of L2, that divides the bytes from row to row (or from
    column to column) of `matrix`."""
    pitch = matrix.pitch(matrix.layout) if matrix.layout != "-" else 1
    return math.gcd(pitch * matrix.dtype.itemsize, LINE)


def _wide(matrix: Matrix) -> bool:
    """Whether pointer loads of `matrix` are 16 bytes wide; see `Problem.vectorised`."""
    return matrix.aligned and matrix.pitch_is_multiple_of(16)


def _c_major(matrix: Matrix) -> str:
    """How C is stored: along rows (N) or columns (T); by threads (n, t) where its lines don't begin
    on 16-byte boundaries."""
    layout = matrix.layout
    pitch = matrix.pitch(layout) * matrix.dtype.itemsize if layout != "-" else 1
    if matrix.aligned and pitch % 16 == 0:
        return layout
    return "t" if layout == "T" else "n"
