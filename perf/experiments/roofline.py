"""`python -m perf roofline`: the card's roofs, measured, and a picture of the suite under them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tritemm.arch import gpus
from tritemm.machine.command import write_why_not

from .. import cli, figures, session, tables
from ..case import ACCUMULATE, Case
from ..competitors import cublas
from ..engine import Plan
from ..roof import SIZE, Roof, Roofs
from ..rows import REFERENCE, Row
from ..select import latest_run
from ..tables import Parts, Table, digits
from ..views import Selection, View, newest_suite

#: Operand types; tf32 is fp32 that is multiplied so.
TYPES = ("bf16", "fp16", "fp8", "int8", "tf32", "fp32", "fp64")

EXAMPLES = """
python -m perf roofline
python -m perf roofline --write
python -m perf plot roofline --out roofline.png
"""


def cases() -> list[Case]:
    """A large product of each type, in the layout that all of them have."""
    size = (SIZE, SIZE, SIZE, "NT")
    tf32 = Case(*size, "fp32", precision="tf32")
    return [tf32 if t == "tf32" else Case(*size, t, ACCUMULATE[t]) for t in TYPES]


def register(commands) -> None:
    described = "Measure the roofs: a copy, and a large product of each type."
    command = cli.add_command(commands, "roofline", run, described, EXAMPLES)
    cli.add_measurement(command, rounds=3)
    told = (
        "write the GPU's physics to FILE, or else to its file in tritemm/arch/gpus, made if missing"
    )
    command.add_argument("--write", nargs="?", const="", metavar="FILE", help=told)


def run(args: argparse.Namespace) -> int:
    if reason := cli.unable("roofline"):
        return cli.refuse(reason)
    path = args.write and Path(args.write)
    if path and (reason := write_why_not(path)):
        return cli.refuse(f"--write {path}: {reason}")
    there = session.Session(args, "roofline")
    there.measure_roofs()
    if there.roofs is None:
        told = "the SM clock can't be read: pip install nvidia-ml-py (and see nvidia-smi)"
        return cli.refuse(told)
    if args.write is not None:
        path = path or gpus.path_of(there.roofs.device.name)
        path.write_text(gpus.text_of(file_of(there.roofs)))
        cli.say(f"wrote {path}")
    own = lambda bench, rows: at_own_clock(rows, there.roofs)  # noqa: E731
    tasks = [session.Task(c, lambda bench: cublas(bench.case), amend=own) for c in cases()]
    there.measure(tasks, session.planned(args, Plan(settle=1.0)))
    return there.finish(lambda rows: tables.text([_table(rows)]))


def file_of(roofs: Roofs) -> dict[str, Any]:
    """What the file of a GPU with these roofs holds: what it held, if there is one, and these."""
    device = roofs.device
    held = next((data for data in gpus.files() if data["gpu"] == device.name), {})
    physics = {
        "clock": _rounded(1e6 * roofs.mhz),
        "copy_rate": _rounded(1e9 * roofs.gbs),
        "launch": _rounded(1e-6 * roofs.launch, 2),
        "l2": gpus.physics(device).l2,
        "clusters": device.clusters,
    }
    facts = {"gpu": device.name, "capability": device.capability}
    facts |= {"sms": device.sms, "shared": device.shared}
    return {**held, **facts, "physics": physics}


def _rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")


def at_own_clock(rows: Sequence[Row], roofs: Roofs) -> list[Row]:
    """The rows with the dense rate at the clock that their own product settles at."""
    return [dataclasses.replace(row, roof=roofs.of(row.case, row.sm_mhz)) for row in rows]


def _table(rows: Sequence[Row]) -> Table:
    head = (f"{SIZE}³ NT", "MHz", "W", "dense TFLOP/s at that clock", "cuBLAS TFLOP/s", "%")
    body = []
    for row in rows:
        if row.competitor == REFERENCE and row.us and row.roof:
            card = (tables.whole(row.sm_mhz), tables.whole(row.power_w))
            share = tables.percent(row.tflops / row.roof.tflops)
            speeds = (digits(row.roof.tflops), digits(row.tflops), share)
            body.append((row.case.kind, *card, *speeds, tables.whole(row.roof.gbs)))
    return Table((*head, "copy GB/s"), body)


# The picture


def plot_roofline(rows: list[Row], selection: Selection):
    """The suite's problems under the measured roofs: arithmetic intensity against TFLOP/s."""
    suite = [row for row in rows if row.experiment == "suite"]
    measured = [row for row in rows if row.experiment == "roofline"]
    shown = figures.measured(tables.against_cublas(suite, selection.competitor))
    own = [result.ours for result in shown if result.ours.us]
    cublas = [row for row in suite if row.competitor == REFERENCE and row.us]
    roofs = roofs_of(measured, [*own, *cublas])
    if not roofs:
        raise ValueError("no row has a roof: pip install nvidia-ml-py, and measure again")
    figure, axes = figures.blank(6.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_roofs(axes, roofs, [*own, *cublas])
    hollow = {"marker": "o", "s": 26, "facecolors": "none", "edgecolors": figures.GREY}
    axes.scatter(*_at(cublas), label="cuBLAS", zorder=3, linewidths=1, **hollow)
    theirs = {row.id: row.tflops for row in cublas}
    for row in own:  # a line between a problem's two points
        ends = (row.tflops, theirs.get(row.id, row.tflops))
        axes.vlines(row.case.flops / row.case.bytes, *ends, color="#cccccc", lw=0.9, zorder=2)
    groups = dict.fromkeys(row.problem["class"] for row in own)
    looks = figures.CLASSES * len(groups)
    for group, (color, marker) in zip(groups, looks, strict=False):
        points = [row for row in own if row.problem["class"] == group]
        style = {"color": color, "marker": marker, "s": 22, "linewidths": 0, "zorder": 4}
        axes.scatter(*_at(points), label=group, **style)
    axes.set_xlabel("FLOP per byte, if each element is moved once", fontsize=10)
    axes.set_ylabel("TFLOP/s", fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    words = f"{figures.called(own)} and cuBLAS under the measured roofs, {own[0].mode}"
    figures.title(figure, words)
    figures.legend(axes, 5)
    figures.caption(figure, own)
    return figure


def roofs_of(measured: Sequence[Row], suite: Sequence[Row]) -> dict[str, Roof]:
    """The roof of each type in the suite: at its own settled clock, or else the suite's."""
    own = {r.case.kind: r.roof for r in measured if r.competitor == REFERENCE and r.us}
    found: dict[str, Roof] = {}
    for row in suite:
        if roof := own.get(row.case.kind) or row.roof:
            found.setdefault(row.case.kind, roof)
    return found


def _at(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.case.flops / row.case.bytes for row in rows], [row.tflops for row in rows]


def _draw_roofs(axes, roofs: dict[str, Roof], rows: Sequence[Row]) -> None:
    """The copy's slope, and from there on each type's dense rate, labelled at its end."""
    across, up = _at(rows)
    gbs = max(roof.gbs for roof in roofs.values())
    top = max(roof.tflops for roof in roofs.values())
    left, right = min(across) / 1.5, max(*across, 3e3 * top / gbs) * 1.5
    axes.set_xlim(left, right)
    axes.set_ylim(min(up) / 3, top * 1.7)  # room for the labels
    style = {"color": figures.PRINT, "linestyle": "--", "linewidth": 1, "zorder": 2}
    axes.plot([left, top / gbs * 1e3], [left * gbs / 1e3, top], **style)
    for roof in roofs.values():
        axes.plot([roof.tflops / gbs * 1e3, right], [roof.tflops] * 2, **style)
    for place, (kind, roof) in enumerate(roofs.items()):
        end = right / (1, 3)[place % 2]  # those of neighbours would lie on one another
        words = f"{kind} {roof.tflops:.0f}"
        axes.text(end, roof.tflops, words, fontsize=7, ha="right", va="bottom")
    corner = {"fontsize": 8.5, "transform": axes.transAxes}
    axes.text(0.02, 0.94, f"the slope: a copy, {gbs:.0f} GB/s", **corner)


def _newest(rows: Sequence[Row], s: Selection) -> list[Row]:
    """The roofs, and the suite."""
    roofs = latest_run(rows, "roofline", s.gpu, competitor=REFERENCE, enough=len(cases()))
    return roofs + newest_suite(rows, dataclasses.replace(s, mode="sustained"))


def _parts(rows: list[Row], s: Selection) -> Parts:
    roofs = [row for row in rows if row.experiment == "roofline"]
    return [_table(roofs), tables.origin(roofs)]


VIEWS = {"roofline": View(_newest, _parts, plot_roofline, "roofline 4")}
