"""An H200: what is in what, and the four kinds of memory."""

from . import draw, h200
from .draw import LIGHT, MARGIN, WIDTH, Panel, picture

GREEN, YELLOW, BLUE, PINK = LIGHT[2], LIGHT[1], LIGHT[0], LIGHT[3]
ACROSS = 22  # SMs of a row of the picture


def _box(x: float, y: float, width: float, high: float, fill: str, *words: str) -> list[str]:
    """A box with its words in the middle, a line each."""
    first = y + high / 2 + 4.5 - 7.5 * (len(words) - 1)
    return [
        draw.rect(x, y, width, high, fill, draw.GREY),
        *(draw.text(x + width / 2, first + 15 * i, line, anchor="middle")
          for i, line in enumerate(words)),
    ]  # fmt: skip


def _gpu() -> Panel:
    """All SMs, and what they share."""
    wide = WIDTH - 2 * MARGIN
    side = (wide - 20) / ACROSS
    down = h200.DEVICE.sms // ACROSS
    shapes = [draw.rect(MARGIN, 0, wide, 34 + down * side + 84, "#f6f6f6", draw.GREY)]
    shapes.append(draw.text(MARGIN + 10, 19, f"GPU: {h200.DEVICE.sms} SMs", draw.NORMAL))
    for number in range(h200.DEVICE.sms):
        row, col = divmod(number, ACROSS)
        fill = draw.BLUE if number == 0 else "#ffffff"
        place = (MARGIN + 10 + col * side, 28 + row * side)
        shapes.append(draw.rect(*place, side - 3, side - 3, fill, draw.GREY))
    y = 28 + down * side + 6
    shapes += _box(MARGIN + 10, y, wide - 20, 30, BLUE, f"L2 cache, {h200.L2 / 1e6:.0f} MB")
    y += 38
    words = f"device memory (DRAM), {h200.MEMORY / 1e9:.0f} GB, at {h200.COPY / 1e12:.2f} TB/s"
    shapes += _box(MARGIN + 10, y, wide - 20, 42, YELLOW, words)
    return Panel(34 + down * side + 92, shapes)


def _sm() -> Panel:
    """One SM: four alike, and what they share."""
    wide, gap = WIDTH - 2 * MARGIN, 6
    each = (wide - 20 - (h200.PARTS - 1) * gap) / h200.PARTS
    shapes = [draw.rect(MARGIN, 0, wide, 250, "#f6f6f6", draw.BLUE, 2)]
    shapes.append(draw.text(MARGIN + 10, 19, "one SM: four sub-partitions", draw.NORMAL))
    held = h200.REGISTERS // h200.PARTS // 1024
    for part in range(h200.PARTS):
        x, y = MARGIN + 10 + part * (each + gap), 28
        shapes.append(draw.rect(x, y, each, 168, "#ffffff", draw.GREY))
        for high, fill, words in (
            (32, "#e8e8e8", ("scheduler",)),
            (38, PINK, ("registers", f"{held} KB")),
            (38, "#e8e8e8", (f"{h200.LANES} lanes", "for fp32")),
            (44, GREEN, ("tensor core", f"{h200.TENSOR:.0f}/cycle")),
        ):
            shapes += _box(x + 4, y + 4, each - 8, high - 4, fill, *words)
            y += high + 2
    shared = h200.DEVICE.shared // 1024
    whole = f"shared memory and L1 cache, {h200.ON_SM // 1024} KB"
    shapes += _box(MARGIN + 10, 202, wide - 20, 40, BLUE, whole,
                   f"(a program can have {shared} KB as shared memory)")  # fmt: skip
    return Panel(258, shapes)


def machine() -> str:
    """From outside in: the GPU, then one of its SMs."""
    return picture(
        "An H200, and one of its SMs",
        draw.paragraph("The blue square is one SM. The second box shows the same SM, enlarged."),
        _gpu(),
        _sm(),
        draw.paragraph(
            f"A tensor core does {h200.TENSOR:.0f} FLOP in a cycle, of 16-bit operands. In large "
            f"products the clock settles at about {h200.PHYSICS.clock / 1e6:.0f} MHz."
        ),
    )


def memories() -> str:
    """Registers, shared memory, L2 and device memory: whose, how large, how fast, how far."""
    clock, sms = h200.PHYSICS.clock, h200.DEVICE.sms
    rows = (
        ("registers: one thread's own", PINK, f"{h200.REGISTERS // 1024} KB in an SM",
         "instructions read and write them directly"),
        ("shared memory: one program's own", GREEN,
         f"up to {h200.DEVICE.shared // 1024} KB of an SM",
         f"{h200.SHARED_RATE / 1e12:.0f} TB/s in all, {h200.SHARED_CYCLES} cycles"),
        ("L2 cache: of all SMs", BLUE, f"{h200.L2 / 1e6:.0f} MB",
         f"at least {h200.L2_DRAWN / 1e12:.0f} TB/s, {h200.L2_LATENCY * clock:.0f} cycles"),
        ("device memory: of all SMs", YELLOW, f"{h200.MEMORY / 1e9:.0f} GB",
         f"{h200.COPY / 1e12:.2f} TB/s, {h200.MEMORY_LATENCY * clock:.0f} cycles"),
    )  # fmt: skip
    least, high = 210, 62
    shapes = []
    for i, (name, fill, size, rate) in enumerate(rows):
        wide = least + (WIDTH - 2 * MARGIN - least) * (i + 1) / len(rows)
        x, y = (WIDTH - wide) / 2, i * (high + 6)
        shapes += [
            *_box(x, y, wide, high, fill),
            draw.text(WIDTH / 2, y + 18, name, draw.NORMAL, "middle"),
            draw.text(WIDTH / 2, y + 35, size, anchor="middle"),
            draw.text(WIDTH / 2, y + 52, rate, anchor="middle"),
        ]
    return picture(
        "Four kinds of memory",
        draw.paragraph(
            f"On an H200 at {clock / 1e6:.0f} MHz: who has it, its size, its rate, and about how "
            "long a load takes to arrive."
        ),
        Panel(len(rows) * (high + 6) + 4, shapes),
        draw.paragraph(
            f"All {sms} SMs together have {sms * h200.REGISTERS / 1e6:.0f} MB of registers and "
            f"{sms * h200.DEVICE.shared / 1e6:.0f} MB of shared memory."
        ),
    )
