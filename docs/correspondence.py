"""The generated parts of docs/correspondence.md, from the machine code that docs.code records.

A comment above each table on the page says what it shows. Tables count mnemonics in kernels, called
as `docs.code` calls them; they show the layouts of shared memory that Triton chose, or the order of
loads and products; and they compare rungs by their bank conflicts on a GPU, and Triton's by their
speed over CUDA's.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from perf.case import Case
from perf.competitors import rung_of
from perf.experiments.profile import CONFLICTS
from perf.rows import CUDA, Row
from perf.rungs import told
from perf.sources import CHANGED, hashes, note
from perf.stats import Quantiles
from perf.tables import Table, markdown, spread

from . import code
from .pictures.raster import profiles

#: Sizes, type and accumulator of the measured ratios: those of the newest rows that have any.
MEASURED = ((4096, "fp16", "fp32"), (4096, "bf16", "fp32"), (4096, "fp16", "fp16"))


#: What is asked to be shown: its words by "count", "in", "show", "conflicts" and "ratios".
Proof = Mapping[str, Sequence[str]]
_PROOF = re.compile(r"^<!-- proof\n(.*?)\n-->\n<!-- begin: (.+?) -->", re.MULTILINE | re.DOTALL)


@functools.cache
def proofs() -> dict[str, Proof]:
    """The proofs of the page, by the name of the part that shows them."""
    found = {}
    for text, name in _PROOF.findall(code.PAGE.read_text()):
        lines = (line.partition(": ") for line in text.splitlines())
        found[name] = {key: words.split(", ") for key, _, words in lines}
    return found


def parts(rows: Sequence[Row]) -> dict[str, str]:
    """The generated texts of the page by the names of their markers."""
    data = code.load()
    texts = {name: shown(proof, data, rows) for name, proof in proofs().items()}
    return {"compilers": compilers(data), **texts}


def compilers(data: Mapping[str, Any]) -> str:
    names = sorted({entry["compiler"] for entry in data.values()})
    problem = f"4096 x 4096 x 4096 {code.LAYOUT}, {code.DTYPE} (wmma's fp16), fp32 accumulator"
    return f"Compiled by {' and '.join(names)}: {problem}."


def shown(proof: Proof, data: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The counts of one technique, and what else its proof lists."""
    entries = {key: data[key] for key in proof["in"] if key in data}
    counts = [
        [title(key, entry), *(str(code.count(entry, name)) for name in proof["count"])]
        for key, entry in entries.items()
    ]
    parts = [Table(["", *(f"`{name}`" for name in proof["count"])], counts)]
    asked = proof.get("show", ())
    if "layouts" in asked:
        parts.append("\n".join(_layouts(entries)))
    if "conflicts" in proof:
        parts.append(conflicts(proof["conflicts"]))
    if "order" in asked:
        orders = [f"{title(key, entry)}\n  {entry['order']}" for key, entry in entries.items()]
        parts.append("\n".join(["```", *orders, "```"]))
    if "ratios" in proof:
        parts.append(measured(proof["ratios"], rows))
    return markdown(parts)


def title(key: str, entry: Mapping[str, Any]) -> str:
    """`mma_base (CUDA, sm_80)`, `pipelined, 2 stages (Triton, sm_80)`, `permuted, plain (...)`."""
    language = "Triton" if entry["compiler"].startswith("Triton") else "CUDA"
    name, _, sm = key.partition(" sm_")
    return f"{rung_of(name)}{told(name, entry['kernel'])} ({language}, sm_{sm})"


def conflicts(names: Sequence[str]) -> str:
    """Bank conflicts in shared memory, of the newest profile of each rung."""
    newest = profiles()
    lines, origins, changed = [], set(), False
    for name in names:
        profile = newest[name]
        [kernel] = profile["kernels"]
        counts = [f"{counter.value(kernel['values']) / 1e6:.2f} M" for counter in CONFLICTS]
        lines.append([rung_of(name) + told(name, profile["config"]), *counts])
        origins.add(f"{Case(**profile['case'])} on {profile['gpu']}, {profile['time'][:10]}")
        changed |= profile["code"] != hashes()[profile["ladder"], rung_of(name)]
    origin = "; ".join(sorted(origins)) + CHANGED * changed
    table = Table(["bank conflicts", *(c.label.strip() for c in CONFLICTS)], lines)
    return markdown([table, f"Counted by Nsight Compute in one launch, {origin}."])


def _layouts(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"- {title(key, entry)}: " + ", ".join(f"`{text}`" for text in entry["layouts"])
        for key, entry in entries.items()
        if entry.get("layouts")
    ]


def measured(ratios: Sequence[str], rows: Sequence[Row]) -> str:
    """The speed of each Triton rung over that of its CUDA twin, from the newest rows."""
    found: dict[str, list[str]] = {}
    for text in ratios:
        row, ratio = newest(*text.split(" / "), rows)
        origin = origin_of(row, text.partition(" / ")[0], rows) if row else "not yet measured"
        found.setdefault(origin, []).append(f"{text} {spread(ratio, ratio.tie)}" if ratio else text)
    return "\n".join(
        f"Triton's speed over CUDA's, {origin}: {'; '.join(texts)}."
        for origin, texts in sorted(found.items(), key=lambda pair: pair[0] == "not yet measured")
    )


def origin_of(row: Row, rival: str, rows: Sequence[Row]) -> str:
    """What was raced, where and when; and whether both kernels are unchanged."""
    race = (row.time, row.case, rival)
    both = [row, *(r for r in rows if (r.time, r.case, r.competitor) == race)]
    return f"{row.case} on {row.environment.gpu}, {row.time[:10]}{note(both)}"


def newest(triton: str, cuda_rung: str, rows: Sequence[Row]) -> tuple[Row | None, Quantiles | None]:
    """The newest row of the first of the `MEASURED` cases that has both, and the ratio."""
    for size, dtype, accumulate in MEASURED:
        case = Case(size, size, size, code.LAYOUT, dtype, accumulate)
        mine = [row for row in rows if (row.ladder, row.competitor) == (CUDA, cuda_rung)]
        both = [row for row in mine if row.case == case and triton in (row.versus or {})]
        if both:
            row = max(both, key=lambda row: row.time)
            return row, row.versus[triton].inverse
    return None, None
