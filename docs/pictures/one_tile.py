"""The same tile of D, 64 x 16 with one step of 16 in K, as each of the four ways cuts it.

Shapes are those of the type table, instructions those that docs/types.json records.
"""

import dataclasses

from docs.types import record

from . import draw
from .draw import LIGHT, MARGIN, Panel, picture
from .fragments import MMA, WGMMA, WMMA

ROWS, COLUMNS = WGMMA.shape[:2]


@dataclasses.dataclass(frozen=True)
class Way:
    """How one way says the product: the shape of what it says at once, and what it becomes."""

    words: str
    shape: tuple[int, int]
    warps: int
    row: str
    column: str
    arch: str

    @property
    def said(self) -> int:
        """How often it is said for the whole tile, by all warps together."""
        return ROWS // self.shape[0] * (COLUMNS // self.shape[1])

    @property
    def sass(self) -> str:
        """What the type table records that one of them compiles to."""
        found = record.load()["rows"][self.row][self.column][self.arch]
        # `tl.dot` of 8 columns becomes something else.
        name = max(found, key=lambda name: found[name])
        return name.replace("xN", f"x{COLUMNS}")


WAYS = (
    Way("WMMA", WMMA.shape[:2], 4, "wmma.m16n16k16.f32.f32", "cuda", "90a"),
    Way("MMA", MMA.shape[:2], 4, "mma.m16n8k16.f32.f16.f16.f32", "cuda", "90a"),
    Way("WGMMA", WGMMA.shape[:2], 1, "wgmma.m64nNk16.f32.f16.f16", "cuda", "90a"),
    Way("Triton", WGMMA.shape[:2], 1, "wgmma.m64nNk16.f32.f16.f16", "triton", "90a"),
)


def ways() -> str:
    """D four times, cut as each way says it; the colour is the warp that says it."""
    wide, high = 84, 176
    shapes = []
    for nth, way in enumerate(WAYS):
        left = MARGIN + 2 + nth * 115
        rows, cols = way.shape
        shapes.append(draw.text(left + wide / 2, 12, way.words, draw.NORMAL, "middle"))
        for row in range(0, ROWS, rows):
            for col in range(0, COLUMNS, cols):
                box = (left + col * wide / COLUMNS, 20 + row * high / ROWS,
                       cols * wide / COLUMNS, rows * high / ROWS)  # fmt: skip
                color = LIGHT[row // 16 % 4] if way.warps == 4 else "#e4e4e4"
                shapes += [draw.rect(*box, color), draw.rect(*box, "none", draw.INK, 1.2)]
                if way.warps == 4 and col == 0:
                    shapes.append(draw.text(box[0] + 5, box[1] + 26, f"w{row // 16}"))
        if way.warps == 1:
            words = ("all four", "warps") if way.words == "WGMMA" else ("the whole", "program")
            shapes += [draw.text(left + wide / 2, 106 + 16 * i, line, anchor="middle")
                       for i, line in enumerate(words)]  # fmt: skip
    return picture(
        "One tile, 64 x 16 x 16, written in four ways",
        draw.paragraph("A box is what one instruction covers; w is the warp that issues it."),
        Panel(20 + high + 10, shapes),
        *(
            draw.paragraph(f"{way.words}: {way.said} of {way.shape[0]} x {way.shape[1]} "
                           f"in all, each {way.sass}")
            for way in WAYS
        ),
    )  # fmt: skip
