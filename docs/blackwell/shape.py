"""The two versions of the kernel: what is different in them."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a tile in elements; `STAGES` of the ring; accumulators in tensor memory.

    A tile is that of a cluster of `CTAS` programs, 1 or 2, each of which has 128 of its rows. C is
    stored EPI_N columns at a time. Tiles come in groups of GROUP_M tile rows, from the hardware
    if `CLC`.
    """

    CTAS: int
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    STAGES: int
    ACCUMULATORS: int
    CLC: bool
    EPI_N: int = 64
    GROUP_M: int = 8

    def constants(self, constexpr: Any) -> "Shape":
        """The same with each field a `constexpr`, as a kernel wants them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Shape(**{name: constexpr(value) for name, value in fields.items()})

    @property
    def words(self) -> str:
        programs = "2 programs" if self.CTAS > 1 else "1 program"
        tiles = "tiles from cluster launch control" if self.CLC else "tiles in turn"
        return (
            f"{self.BLOCK_M}x{self.BLOCK_N}x{self.BLOCK_K} of {programs}, {self.STAGES} stages, "
            f"{self.ACCUMULATORS} accumulator{'s' * (self.ACCUMULATORS > 1)}, {tiles}"
        )


#: The accumulator in tensor memory, and one thread that issues.
ONE = Shape(CTAS=1, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, STAGES=4, ACCUMULATORS=1, CLC=False)
#: Also two programs to a tile, two accumulators, and tiles from cluster launch control.
PAIR = Shape(CTAS=2, BLOCK_M=256, BLOCK_N=256, BLOCK_K=64, STAGES=6, ACCUMULATORS=2, CLC=True)
VERSIONS = {"one": ONE, "pair": PAIR}
