"""The suite's problems under the measured roofs: arithmetic intensity against TFLOP/s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ..roof import Roof
from ..roofline import name
from ..rows import REFERENCE, Row
from .figures import CLASSES, GREY, called, caption, save, shown

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "roofline 2"

#: Problems whose names are written beside them.
LABELS = 9
#: Dense rates that are nearer than this to one another share a label.
NEAR = 1.12


def plot_roofline(
    roof_rows: Sequence[Row],
    suite_rows: Sequence[Row],
    path: Path,
    competitor: str | None = None,
) -> None:
    """Draw a run of `suite` under the roofs of a run of `roofline` into `path` (.png or .svg).

    The digest is that of `[*roof_rows, *suite_rows]`. `competitor` is "auto" unless named.
    ValueError if nothing of it was measured, or no row has a roof.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    own = [row for row in shown(suite_rows, competitor) if row.competitor != REFERENCE and row.us]
    cublas = [row for row in suite_rows if row.competitor == REFERENCE and row.us]
    roofs = roofs_of(roof_rows, [*own, *cublas])
    if not roofs:
        raise ValueError("no row has a roof: pip install nvidia-ml-py, and measure again")
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    _limit(axes, roofs, [*own, *cublas])
    _draw_roofs(axes, roofs)
    hollow = {"marker": "o", "s": 26, "facecolors": "none", "edgecolors": GREY, "linewidths": 1}
    axes.scatter(*_places(cublas), label="cuBLAS", zorder=3, **hollow)
    theirs = {row.problem["id"]: row.tflops for row in cublas}
    for row in own:  # a line between a problem's two points
        ends = (row.tflops, theirs.get(row.problem["id"], row.tflops))
        axes.vlines(row.case.flops / row.case.bytes, *ends, color="#cccccc", lw=0.9, zorder=2)
    groups = dict.fromkeys(row.problem["class"] for row in own)
    for place, group in enumerate(groups):
        color, marker = CLASSES[place % len(CLASSES)]
        points = [row for row in own if row.problem["class"] == group]
        style = {"color": color, "marker": marker, "s": 22, "linewidths": 0, "zorder": 4}
        axes.scatter(*_places(points), label=group, **style)
    axes.set_xlabel("FLOP per byte, if each element is moved once", fontsize=10)
    axes.set_ylabel("TFLOP/s", fontsize=10)
    axes.tick_params(labelsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    lowest = furthest(own, roofs)[:LABELS]
    figure.suptitle(
        f"{called(own)} and cuBLAS under the measured roofs, {own[0].mode}\n"
        "Labelled: the furthest below their type's roof, with their share of it",
        fontsize=11, x=0.01, ha="left",
    )  # fmt: skip
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=5, fontsize=9, frameon=False, borderaxespad=0
    )
    caption(figure, own)
    _annotate(figure, axes, lowest, roofs, [*own, *cublas])
    save(figure, path, [*roof_rows, *suite_rows], DRAWING)


def roofs_of(roof_rows: Sequence[Row], suite_rows: Sequence[Row]) -> dict[str, Roof]:
    """The roof of each type in the suite: at its own settled clock, or else the suite's."""
    measured = {
        name(row.case): row.roof
        for row in roof_rows
        if row.competitor == REFERENCE and row.us and row.roof
    }
    found = {}
    for row in suite_rows:
        if roof := measured.get(name(row.case), row.roof):
            found.setdefault(name(row.case), roof)
    return found


def share(row: Row, roofs: dict[str, Roof]) -> float:
    """The drawn roof's time over the row's."""
    return roofs[name(row.case)].floor(row.case) / row.us.p50


def furthest(rows: Sequence[Row], roofs: dict[str, Roof]) -> list[Row]:
    """Those with a roof, the lowest share of it first."""
    known = [row for row in rows if name(row.case) in roofs]
    return sorted(known, key=lambda row: share(row, roofs))


def alike(roofs: dict[str, Roof]) -> list[list[str]]:
    """The types, in groups whose dense rates are too near to one another for a label each."""
    groups: list[list[str]] = []
    for kind in sorted(roofs, key=lambda kind: -roofs[kind].tflops):
        if groups and roofs[groups[-1][0]].tflops < NEAR * roofs[kind].tflops:
            groups[-1].append(kind)
        else:
            groups.append([kind])
    return groups


def _places(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.case.flops / row.case.bytes for row in rows], [row.tflops for row in rows]


def _limit(axes, roofs: dict[str, Roof], rows: Sequence[Row]) -> None:
    across, up = _places(rows)
    ridge = max(roof.tflops / roof.gbs * 1e3 for roof in roofs.values())
    axes.set_xlim(min(across) / 1.5, max(*across, 3 * ridge) * 1.5)
    axes.set_ylim(min(up) / 1.5, max(roof.tflops for roof in roofs.values()) * 1.7)


def _draw_roofs(axes, roofs: dict[str, Roof]) -> None:
    """The copy's slope, and from there on each type's dense rate, labelled at its end."""
    left, right = axes.get_xlim()
    bottom, _ = axes.get_ylim()
    gbs = max(roof.gbs for roof in roofs.values())
    top = max(roof.tflops for roof in roofs.values())
    style = {"color": "#555555", "linestyle": "--", "linewidth": 1, "zorder": 2}
    axes.plot([left, top / gbs * 1e3], [left * gbs / 1e3, top], **style)
    for roof in roofs.values():
        axes.plot([roof.tflops / gbs * 1e3, right], [roof.tflops] * 2, **style)
    text = {"fontsize": 8.5, "color": "#333333"}
    for group in alike(roofs):
        words = "\n".join(f"{kind} {roofs[kind].tflops:.0f}" for kind in group)
        level = math.sqrt(roofs[group[0]].tflops * roofs[group[-1]].tflops)
        axes.text(right * 1.03, level, words, ha="left", va="center", **text)
    begin = max(left, bottom / gbs * 1e3) * 1.6
    axes.text(
        begin, begin * gbs / 1e3 * 1.06, f"copy {gbs:.0f} GB/s",
        rotation=math.degrees(math.atan(gbs / 1e3)), rotation_mode="anchor",
        transform_rotates_text=True, va="bottom", **text,
    )  # fmt: skip


def _annotate(figure, axes, rows: Sequence[Row], roofs, others: Sequence[Row]) -> None:
    """Write each problem's id and share beside its point, where least else is."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # settles the layout, and with it where points are
    scale, inside = 72 / figure.dpi, axes.get_window_extent()
    points = axes.transData.transform(list(zip(*_places(others), strict=True)))
    taken: list[Bbox] = [text.get_window_extent() for text in axes.texts]
    for line in axes.lines:  # the roofs
        ends = axes.transData.transform(line.get_xydata())
        steps = [i / 40 for i in range(41)]
        points = [*points, *(ends[0] + s * (ends[-1] - ends[0]) for s in steps)]
    for row in rows:
        intensity = row.case.flops / row.case.bytes
        note = axes.annotate(
            f"{row.problem['id']} {100 * share(row, roofs):.0f} %", (intensity, row.tflops),
            xytext=(0, 0), textcoords="offset points", ha="center", va="center", fontsize=8.5,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": GREY, "shrinkA": 0},
            zorder=5, in_layout=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )  # fmt: skip
        size = note.get_window_extent()
        center = axes.transData.transform((intensity, row.tflops))
        offset, box = _best(center, size.width, size.height, points, taken, inside)
        note.set_position((offset[0] * scale, offset[1] * scale))
        taken.append(box)


def _best(center, width: float, height: float, points, taken, inside):
    """The offset, in pixels, of a label's middle where it hides least; and its box there."""
    from matplotlib.transforms import Bbox

    found = []
    for far in (6, 13, 22, 34, 48):
        for turn in range(8):
            angle = turn * math.pi / 4
            x = math.cos(angle) * (far + width / 2)
            y = math.sin(angle) * (far + height / 2)
            left, low = center[0] + x - width / 2, center[1] + y - height / 2
            box = Bbox.from_bounds(left, low, width, height)
            hidden = sum(box.padded(2).contains(*point) for point in points)
            hidden += 5 * box.count_overlaps(taken)
            out = not (inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1))
            found.append((hidden + 20 * out + far / 30, turn, (x, y), box))
    return min(found, key=lambda item: item[:2])[2:]
