"""The generated parts of docs/concepts/*.md: tables, excerpts of code, the map."""

import math
from typing import Any

import torch

from perf.tables import Table, markdown
from tritemm.problem import DEFAULT_MODULI, MODULI, RESIDUES
from tritemm.problem.residues import allowed, largest_norm
from tritemm.rungs import RUNGS

from .blackwell import page as blackwell
from .lessons.measured import load as on_the_meter
from .pictures import banks, clusters, energy, one_tile, raster, residues, split


def parts() -> dict[str, str]:
    """Every generated table by its name."""
    notes = {rung.name: rung.header["Note"] for rung in RUNGS if "Note" in rung.header}
    return {
        "conflicts": conflicts(),
        "reads": reads(),
        "splits": splits(),
        "clusters": shared_loads(),
        "joules": joules(),
        "one-tile": ways(),
        "ways-measured": ways_measured(),
        "lines": lines(),
        "residues-modulo": residues_modulo(),
        "residues-back": residues_back(),
        "moduli": moduli(),
        "overlaps": overlaps(),
        **blackwell.parts(),
        **{f"note-{name}": f"> {note}" for name, note in notes.items()},
    }


def conflicts_measured(profile: dict[str, Any]) -> tuple[float, float]:
    """Those of loads, and all others. The others are what is left of the sum: in two profiles of
    mma_base and mma_permuted that differed by 0.3 %, and the counter of stores by 3 %."""
    every = raster.counted(profile, "shared-memory bank conflicts")
    loads = raster.counted(profile, "by loads")
    return loads, every - loads


#: rung -> its layout of operands, and of C where the formula knows who stores what.
STAGED = {
    "wmma_base": (banks.of_operands(banks.PLAIN), None),
    "wmma_padding": (banks.of_operands(banks.PADDED), None),
    "mma_base": (banks.of_operands(banks.PLAIN), banks.of_output(banks.PLAIN)),
    "mma_permuted": (banks.of_operands(banks.PERMUTED), banks.of_output(banks.PERMUTED)),
    "permuted[2]": (banks.of_triton("plain"), None),
    "permuted[1]": (banks.of_triton("padded"), None),
    "permuted": (banks.of_triton("permuted"), None),
}


def conflicts() -> str:
    """Conflicts by the formula and by Nsight Compute."""
    own = raster.profiles()
    rows = []
    for name, (ab, c) in STAGED.items():
        case = own[name]["case"]
        found = banks.counted(ab, c or (lambda row, chunk: row * 16 + chunk), case["M"])
        loads, others = (count / 1e6 for count in conflicts_measured(own[name]))
        staging = f"{found.staging / 1e6:.2f} M" if c else "-"
        rows.append([name, f"{found.loads / 1e6:.2f} M", f"{loads:.2f} M", staging,
                     f"{others:.2f} M"])  # fmt: skip
    head = ["kernel", "loads, counted", "loads, measured", "staging of C, counted",
            "all others, measured"]  # fmt: skip
    return markdown([Table(head, rows)])


def reads() -> str:
    """What orders read from memory, by the count and by Nsight Compute."""
    orders = {order.name: order for order in raster.ORDERS}
    rows = []
    for profile in raster.profiles().values():
        config = profile["config"]
        order = orders[config["ORDER"]]
        if (config["BLOCK_M"], config["BLOCK_N"]) != (order.rows, order.columns):
            continue
        value, hits = (raster.counted(profile, each) for each in ("DRAM read", "L2 hit rate"))
        rows.append([profile["rung"], order.words, f"{order.read() / 1e6:.0f} MB",
                     f"{value / 1e6:.0f} MB", f"{hits:.0f} %"])  # fmt: skip
    head = ["kernel", "order", "read, counted", "read, measured", "L2 hits, measured"]
    return markdown([Table(head, sorted(rows, key=lambda row: row[1]), words=2)])


#: M, N, K and the parts that K is cut into.
SPLITS = (
    (256, 256, 32768, 1), (256, 256, 32768, 16), (256, 256, 32768, 64),
    (3072, 768, 65536, 1), (3072, 768, 65536, 2), (3072, 768, 65536, 9),
)  # fmt: skip


def splits() -> str:
    """What cutting K does to a few products, in tiles of 128 x 256."""
    rows = []
    for M, N, K, parts_ in SPLITS:
        tiles = -(-M // split.ROWS) * -(-N // split.COLUMNS)
        share = split.used("scheduler", parts_, tiles, K // split.DEPTH)
        sums = 2 * 4 * M * N * parts_ if parts_ > 1 else 0
        operands = 2 * (M + N) * K
        rows.append([f"{M} x {N} x {K}", str(tiles), str(parts_), f"{100 * share:.0f} %",
                     f"{sums / 1e6:.1f} MB", f"{operands / 1e6:.0f} MB"])  # fmt: skip
    head = ["M x N x K", "tiles", "parts", "of the SMs' time used", "partial sums moved", "A and B"]
    return markdown([Table(head, rows)])


def shared_loads() -> str:
    """What each program loads, and receives, in a step."""
    rows = []
    for each in (clusters.Cluster(128, 256), clusters.PAIR, clusters.Cluster(128, 256, 4)):
        asked = sum(each.asked()) * clusters.DEPTH * 2
        rows.append([each.words, f"{asked // 1024} KB", f"{each.arrives() // 1024} KB",
                     f"{each.traffic() / 1e9:.1f} GB"])  # fmt: skip
    head = ["tile", "loaded in a step, on average", "arrives", f"loaded from L2, {clusters.SIZE}³"]
    return markdown([Table(head, rows)])


#: Of the picture's rungs, those whose numbers the page speaks of.
JOULES = ("simt", "naive", "tiled", "permuted", "pipelined", "tma", "persistent", "cluster",
          "mma_base", "mma_async_stage4", "wgmma_cluster", "cublas")  # fmt: skip


def joules() -> str:
    """Joules, watts and races of some rungs."""
    found = {each.name: each for each in energy.energies(energy.rows())}
    rows = []
    for name in JOULES:
        each, metered = found[name], on_the_meter()["joules"].get(name)
        rows.append([name, f"{each.joules:.3g}", f"{each.low:.3g}-{each.high:.3g}",
                     f"{metered['joules']:.3g}" if metered else "",
                     f"{1e12 * each.joules / energy.FLOP:.3g}", f"{each.watts:.0f}",
                     str(each.races)])  # fmt: skip
    head = ["kernel", "J", "20th to 80th percentile", "by the meter", "pJ per FLOP", "W", "races"]
    return markdown([Table(head, rows)])


def ways() -> str:
    """How many instructions of each way cover the tile, and what one becomes on sm_90."""
    rows = []
    for way in one_tile.WAYS:
        m, n = way.shape
        rows.append([way.words, f"{m} x {n} x 16", str(way.said), f"`{way.sass}`"])
    head = ["way", "one covers", "how many for 64 x 16 x 16", "each becomes"]
    return markdown([Table(head, rows, words=2, tail=1)])


def ways_measured() -> str:
    """The kernel of each way with the least joules at 8192³."""
    families = (
        ("WMMA", "cuda", "wmma_"), ("MMA", "cuda", "mma_"), ("WGMMA", "cuda", "wgmma_"),
        ("Triton, `tl.dot` alone", "triton", ("tiled", "pipelined", "tma", "persistent")),
    )  # fmt: skip
    every = energy.energies(energy.rows())
    rows = []
    for words, ladder, names in families:
        own = [each for each in every if each.ladder == ladder and each.name.startswith(names)]
        best = min(own, key=lambda each: each.joules)
        rows.append([words, best.name, f"{best.seconds * 1e3:.1f} ms", f"{best.joules:.2f} J"])
    return markdown([Table(["way", "kernel", "time", "energy"], rows, words=2)])


def lines() -> str:
    """The lines through families of kernels: joules over time."""
    found = energy.fitted_lines(energy.energies(energy.rows()))
    rows = [[each.words, str(len(each.points)), f"{each.work:.2f} J", f"{each.watts:.0f} W"]
            for each in found]  # fmt: skip
    return markdown([Table(["family", "rungs", "work", "and of time"], rows)])


def residues_modulo() -> str:
    """The first row of the example's A times the first column of B, modulo each modulus."""
    row, column = residues.ROWS[0].numbers, residues.COLUMNS[0].numbers
    own = MODULI[: residues.COUNT]
    rows = []
    for p, weight in zip(own, residues.weights(own), strict=True):
        a, b = residues.residues(row, p), residues.residues(column, p)
        found = residues.dot(a, b)
        lines = (", ".join(map(str, line)) for line in (a, b))
        rows.append([str(p), *lines, str(found), str(found % p), f"{weight:,}".replace(",", " ")])
    head = ["modulo", "the row", "the column", "their product", "its residue", "weight"]
    return markdown([Table(head, rows, words=3)])


def residues_back() -> str:
    """Every element of the example's C."""
    rows = []
    for i, row in enumerate(residues.ROWS):
        for j, column in enumerate(residues.COLUMNS):
            whole, shift = residues.recombined(row, column), row.exponent + column.exponent
            exact = residues.dot(residues.A[i], [line[j] for line in residues.B])
            rows.append([f"row {i + 1}, column {j + 1}", f"{whole:,}".replace(",", " "),
                         f"2^-{shift}", f"{math.ldexp(whole, -shift):.4f}",
                         f"{exact:.4f}"])  # fmt: skip
    head = ["element", "by residues", "times", "is", "exact"]
    return markdown([Table(head, rows)])


def moduli() -> str:
    """What each number of moduli is worth."""
    rows = []
    for word, count in RESIDUES.items():
        norm = largest_norm(count)
        errors = []
        for unit in (2.0**-53, 2.0**-24):
            # Of two lines whose norms are as large as they may be, and of half of that.
            least = math.sqrt(1 / 6) * math.pi / 2 / norm / unit
            ends = (f"{float(f'{error:.2g}'):g}" for error in (least, 2 * least))
            errors.append(" to ".join(ends) if 1e-3 < least < 2e5 else "")
        default = [f"float{torch.finfo(t).bits}" for t, n in DEFAULT_MODULI.items() if n == count]
        rows.append([f"`\"{word}\"`", str(MODULI[count - 1]), f"{math.log2(norm):.1f}", *errors,
                     *(default or [""])])  # fmt: skip
    head = ["`precision`", "adds the modulus", "bits of a norm", "error, in 2^-53 S",
            "in 2^-24 S", '`"int8"` of']  # fmt: skip
    return markdown([Table(head, rows, tail=1)])


#: Whose products may be good enough.
PAIRS = (
    ("normal", "normal"), ("normal", "ReLU of normal"), ("ReLU of normal", "ReLU of normal"),
    ("normal", "one in ten isn't 0"), ("exp(normal)", "exp(normal)"),
    ("exp(2 x normal)", "exp(2 x normal)"),
)  # fmt: skip


def overlaps() -> str:
    """What becomes of lines of some distributions, by the rule of `reconstruct_kernel`."""
    rows = []
    for names in PAIRS:
        usual, least = residues.overlap(*(residues.LINES[name] for name in names))
        said = []
        for dtype, count in DEFAULT_MODULI.items():
            loss = 0.5 / (largest_norm(count) * allowed(count, dtype))
            # Of two lines together it is 2 to 4 times that, as their norms fit.
            good = sum(each * loss <= least for each in (2, 4))
            said.append(("again", "as norms are", "by int8")[good])
        rows.append([*names, f"{usual:.2f}", f"{least:.4f}", *said])
    head = ["rows of A", "columns of B", "overlap", "by the facts, at least",
            *(f"float{torch.finfo(t).bits}" for t in DEFAULT_MODULI)]  # fmt: skip
    return markdown([Table(head, rows, words=2, tail=2)])
