"""Clusters: which program asks for which tile, and what L2 is asked for.

From `Scheduler.place` and `line_bytes` of tritemm/kernels/device/. A test holds what is asked for
against the kernel's producer.
"""

import dataclasses

from tritemm.arch import gpus

from . import draw
from .draw import BLUE, LIGHT, MARGIN, ORANGE, Bar, Panel, picture
from .formulas import module, shape
from .split import SMS

#: Elements of K in a step, of 2 bytes.
DEPTH = 64
SIZE = 8192


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Programs that share loads of B ("b") or of A ("a"); each has a tile rows x columns of C."""

    rows: int
    columns: int
    programs: int = 1
    shared: str = "b"

    @property
    def words(self) -> str:
        tile = f"{self.rows} x {self.columns}"
        if self.programs == 1:
            return f"{tile}, alone"
        return f"{tile}, {self.programs} share {self.shared.upper()}"

    def asked(self) -> tuple[int, int]:
        """Lines along K of A and of B that each program asks L2 for, on average of its steps.

        Of what is shared, it asks for all lines in one of `programs` steps, and in the others none.
        """
        of_a = self.programs if self.shared == "a" else 1
        of_b = self.programs if self.shared == "b" else 1
        return self.rows // of_a, self.columns // of_b

    def arrives(self) -> int:
        """Bytes of a step that arrive in each program's shared memory."""
        return module("cluster_mainloop").line_bytes(self.rows, self.columns, "T")

    def traffic(self, size: int = SIZE) -> int:
        """Bytes that all programs of size³ ask L2 for."""
        tiles = -(-size // self.rows) * -(-size // self.columns)
        return tiles * (size // DEPTH) * sum(self.asked()) * DEPTH * 2

    def tiles(self, down: int, across: int) -> dict[tuple[int, int], tuple[int, int]]:
        """(row, column) of each tile of so many -> (cluster, program of the cluster)."""
        own = shape(
            CLUSTER=self.programs, SHARED=self.shared, BLOCK_M=self.rows, BLOCK_N=self.columns,
            GROUP_M=16, ORDER="grouped",
        )  # fmt: skip
        found = {}
        for program in range(down * across):
            kernel = module("scheduler", program, down * across)
            work = kernel.Scheduler(down * self.rows, across * self.columns, DEPTH, 1, 1, own)
            _, _, row, col = work.place(work.first())
            found[row // self.rows, col // self.columns] = work.first(), work.rank()
        return found


PAIR = Cluster(128, 256, 2)
BY_A = Cluster(128, 256, 2, "a")


def pair() -> str:
    """Two steps of two programs that share B."""
    a, b = PAIR.asked()
    kilo = DEPTH * 2 / 1024
    top, high, wide = 118, 150, 214
    lefts = (MARGIN + 6, MARGIN + 242)
    shapes = [
        draw.rect(MARGIN, 4, draw.WIDTH - 2 * MARGIN, 34, "#e8e8e8", draw.GREY),
        draw.text(draw.WIDTH / 2, 26, "L2", draw.NORMAL, "middle"),
    ]
    for program, left in enumerate(lefts):
        first = program * PAIR.rows
        rows = f"A, rows {first} to {first + PAIR.rows - 1}, both steps"
        shapes += [
            draw.rect(left, top, wide, high, "#fff", draw.GREY),
            draw.text(left + 8, top + high - 10, f"shared memory of program {program}"),
            draw.cell(left + 8, top + 68, wide - 16, 50, LIGHT[2], rows),
        ]
        for step, color in enumerate((LIGHT[0], LIGHT[1])):
            x, y = left + 8 + step * 106, top + 12
            shapes += [
                draw.rect(x, y, 92, 50, color, "#fff"),
                draw.text(x + 46, y + 22, f"B, step {step}", anchor="middle"),
                draw.text(x + 46, y + 38, f"{PAIR.columns} columns", anchor="middle"),
            ]
        shapes.append(draw.arrow(left + wide / 2, 38, left + wide / 2, top + 67, draw.GREEN))
    # Each step's tile of B is asked for once, and arrives twice.
    for step, color in enumerate((BLUE, ORANGE)):
        start = (lefts[step] + 54 + step * 106, 38)
        for left in lefts:
            shapes.append(draw.arrow(*start, left + 54 + step * 106, top + 11, color))
    own = []
    side, x = 60, MARGIN + 6
    for cluster, words in (
        (PAIR, "sharing B: one below the other"),
        (BY_A, "sharing A: side by side"),
    ):
        own.append(draw.text(x, 14, words))
        for (row, col), (number, rank) in sorted(cluster.tiles(4, 4).items()):
            at = (x + col * 52, 22 + row * side / 2)
            own.append(draw.cell(*at, 52, side / 2, LIGHT[number % 4], f"{number}.{rank}"))
        x += 236
    return picture(
        "A cluster of two shares the loads of B",
        draw.paragraph(
            f"Tiles of {PAIR.rows} x {PAIR.columns}, steps of {DEPTH} of K, 16-bit. Program 0 "
            "loads B in the even steps (blue), program 1 in the odd ones (orange); all of it "
            "arrives in both."
        ),
        Panel(top + high + 8, shapes),
        draw.paragraph(
            f"In a step each program asks L2 for {(a + b) * kilo:.0f} KB on average, and receives "
            f"{PAIR.arrives() / 1024:.0f}."
        ),
        draw.paragraph("Which program has which tile of C, as cluster.program:", draw.NORMAL),
        Panel(4 + 18 + 2 * side + 10, own),
    )


CHOICES = (
    Cluster(128, 128), Cluster(128, 128, 2), Cluster(128, 256), Cluster(128, 256, 2),
    Cluster(128, 256, 4), Cluster(256, 128), Cluster(256, 128, 2, "a"), Cluster(256, 192, 2),
)  # fmt: skip


def traffic() -> str:
    """What L2 is asked for, and how many SMs clusters leave without work."""
    asked = []
    for choice in CHOICES:
        said = f"{choice.traffic() / 1e9:.1f} GB"
        color = draw.GREY if choice.programs == 1 else BLUE
        asked.append(Bar(choice.words, choice.traffic(), said, color))
    room, device = [], gpus.device_of(gpus.file_of("NVIDIA H200"))
    for programs in range(1, 9):
        busy = gpus.clusters_at_once(programs, device) * programs
        words = f"clusters of {programs}" if programs > 1 else "no clusters"
        room.append(Bar(words, busy, f"{busy} of {SMS} SMs", draw.GREEN))
    return picture(
        "What clusters save and what they cost",
        draw.paragraph(f"Bytes loaded from L2 at {SIZE}³, 16-bit, by the tile:", draw.NORMAL),
        draw.bars(asked),
        draw.paragraph(
            "SMs of an H200 on which programs have room, as the device reports it: a cluster must "
            "be within one group of SMs.",
            draw.NORMAL,
        ),
        draw.bars(room, SMS),
    )
