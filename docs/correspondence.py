"""The proof behind docs/correspondence.md: `python -m docs.record correspondence`, no GPU.

Compiles the rungs that the page speaks of, Triton's and CUDA's, reads their machine code, and
writes what it found to docs/correspondence.json, from which `docs.generate` makes the page's
tables. Counts are of instructions in the binary, not of executions.

What a table shows stands above it on the page, in a comment: it counts mnemonics in kernels, each a
rung of either ladder and an architecture (`word[2]` is a Triton rung's third config); it shows the
layouts of shared memory that Triton chose, or the order of loads and products; and it compares
rungs by their bank conflicts on a GPU, and Triton's by their speed over CUDA's.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.case import Case
from perf.competitors import rung_of
from perf.experiments.ladder import told
from perf.experiments.profile import CONFLICTS
from perf.rows import CUDA, Row
from perf.sources import CHANGED, hashes, note
from perf.stats import Quantiles
from perf.tables import Table, markdown, spread
from tritemm.compile.sass import count_instructions, count_of

from .pictures.raster import profiles

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "correspondence.json"
PAGE = DATA.with_suffix(".md")
#: The product that both sides are compiled for (CUDA's code does not depend on the sizes).
LAYOUT, DTYPE = "NT", "fp16"
#: Sizes, type and accumulator of the measured ratios: those of the newest rows that have any.
MEASURED = ((4096, "fp16", "fp32"), (4096, "bf16", "fp32"), (4096, "fp16", "fp16"))


# The recorded file


#: What is asked to be shown: its words by "count", "in", "show", "conflicts" and "ratios".
Proof = Mapping[str, Sequence[str]]
_PROOF = re.compile(r"^<!-- proof\n(.*?)\n-->\n<!-- begin: (.+?) -->", re.MULTILINE | re.DOTALL)


@functools.cache
def proofs() -> dict[str, Proof]:
    """What the page asks for, by the name of the part that shows it."""
    found = {}
    for text, name in _PROOF.findall(PAGE.read_text()):
        lines = (line.partition(": ") for line in text.splitlines())
        found[name] = {key: words.split(", ") for key, _, words in lines}
    return found


def codes() -> list[str]:
    """Every kernel that the page counts in, once."""
    return list(dict.fromkeys(code for proof in proofs().values() for code in proof["in"]))


def cited(code: str) -> set[str]:
    """The mnemonics that the page counts in it."""
    return {name for proof in proofs().values() if code in proof["in"] for name in proof["count"]}


def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def count(entry: Mapping[str, Any], mnemonic: str) -> int:
    """Instructions whose full mnemonic begins with this one: HGMMA, UTMALDG.2D.MULTICAST."""
    return count_of(mnemonic, {}, entry["variants"])


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What the recorded file says that is not so, a line each.

    Compilers of other versions may give other counts; what is there must still be there, and what
    isn't must still not be.
    """
    found = []
    for code in codes():
        was, now = old["code"].get(code), new["code"].get(code)
        if was is None or now is None:
            if now is not None:
                found.append(f"{code}: not recorded")
            continue
        compiler = now["compiler"]
        if was["compiler"] == compiler:
            if was != now:
                found.append(f"{code}: not what {compiler} makes of it")
            continue
        for name in sorted(cited(code)):
            counts = [count(entry, name) for entry in (was, now)]
            if bool(counts[0]) != bool(counts[1]):
                found.append(f"{code}: {counts[0]} {name} recorded; {compiler} has {counts[1]}")
    extra = old["code"].keys() - set(codes())
    return found + [f"{key}: recorded, but not spoken of" for key in extra]


# Compiling


def record() -> dict[str, Any]:
    """Compile everything; raises RuntimeError, `toolkit.Unavailable` among them, where it can't."""
    entries = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # of the worker that compiles Triton's rungs
        for code in codes():
            name, _, sm = code.partition(" sm_")
            is_cuda = (ROOT / "cuda_reference" / f"{name}.cu").exists()
            entries[code] = (_cuda if is_cuda else _triton)(name, int(sm))
    return {"problem": f"4096 x 4096 x 4096 {LAYOUT}, {DTYPE}, fp32 accumulator", "code": entries}


def _cuda(name: str, sm: int) -> dict[str, Any]:
    from cuda_reference import toolkit
    from cuda_reference.cubin import compile_cubin

    cubin = compile_cubin(name, sm)
    function = instance(cubin.functions)
    return {
        "compiler": f"nvcc {toolkit.nvcc().version}",
        "kernel": function.name,
        "variants": function.variants,
        "order": order(_code_of(function, cubin)),
    }


def instance(functions: Sequence) -> Any:
    """The kernel for fp16 with fp32 accumulation, and B by columns, of those in a cubin."""
    for demangled, mangled in (
        ("<__half, float>", "I6__halffE"),
        ("<__half, float, false>", "I6__halffLb0EE"),
        ("<float>", "IfE"),
        ("<__half, false>", "I6__halfLb0EE"),
        ("<__half>", "I6__halfE"),
    ):
        for function in functions:
            if demangled in function.name or mangled in function.name:
                return function
    raise RuntimeError(f"no kernel for fp16 among {', '.join(f.name for f in functions)}")


def _code_of(function, cubin) -> str:
    """The function's part of the cubin's disassembly."""
    parts = re.split(r"^\s*Function : \S+\s*$", cubin.sass, flags=re.MULTILINE)[1:]
    known = (function.mix, function.variants)
    return next(part for part in parts if count_instructions(part) == known)


def _triton(word: str, sm: int) -> dict[str, Any]:
    import triton

    from tritemm.compile import asm

    name, _, index = word.partition("[")
    config = int(index.rstrip("]") or 0)
    job = asm.Job(name, sm, layout=LAYOUT, dtype=DTYPE, config=config)
    before = set(_dumped())
    result = asm.compile_many([job], "text", processes=1)[0]
    if isinstance(result, asm.Refusal):
        raise RuntimeError(f"{word} sm_{sm}: {result.reason}")
    [ir] = set(_dumped()) - before
    return {
        "compiler": f"Triton {triton.__version__}",
        "kernel": result.config,
        "variants": result.variants,
        "order": order(result.sass),
        "layouts": layouts(ir.read_text()),
    }


def _dumped() -> Iterable[Path]:
    """Triton's intermediate representation of all that was compiled so far."""
    return Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.ttgir")


def layouts(ir: str) -> list[str]:
    """The layouts of shared memory of matrices, in the words of Triton's IR."""
    found = re.findall(r"#ttg\.((?:swizzled|padded|nvmma)_shared<.*?>)$", ir, re.MULTILINE)
    return sorted({text for text in found if "vec = 1," not in text})  # those of mbarriers


_STEP = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P(?:\d+|T)\s+)?(LDSM|HMMA|BAR)\b", re.MULTILINE
)


def order(sass: str) -> str:
    """Loads of fragments, products and barriers as they follow each other: "12 LDSM, 8 HMMA, …"."""
    runs = [(name, len(list(group))) for name, group in itertools.groupby(_STEP.findall(sass))]
    while runs and runs[-1][0] != "HMMA":
        runs.pop()
    return ", ".join(f"{length} {name}" for name, length in runs)


# The page


def parts(rows: Sequence[Row]) -> dict[str, str]:
    """The generated texts of the page by the names of their markers."""
    data = load()
    texts = {name: shown(proof, data, rows) for name, proof in proofs().items()}
    return {"compilers": compilers(data), **texts}


def compilers(data: Mapping[str, Any]) -> str:
    names = sorted({entry["compiler"] for entry in data["code"].values()})
    return f"Compiled by {' and '.join(names)}: {data['problem']}."


def shown(proof: Proof, data: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The counts of one technique, and what else its proof asks for."""
    entries = {code: data["code"][code] for code in proof["in"] if code in data["code"]}
    counts = [
        [title(code, entry), *(str(count(entry, name)) for name in proof["count"])]
        for code, entry in entries.items()
    ]
    parts = [Table(["", *(f"`{name}`" for name in proof["count"])], counts)]
    asked = proof.get("show", ())
    if "layouts" in asked:
        parts.append("\n".join(_layouts(entries)))
    if "conflicts" in proof:
        parts.append(conflicts(proof["conflicts"]))
    if "order" in asked:
        orders = [f"{title(code, entry)}\n  {entry['order']}" for code, entry in entries.items()]
        parts.append("\n".join(["```", *orders, "```"]))
    if "ratios" in proof:
        parts.append(measured(proof["ratios"], rows))
    return markdown(parts)


def title(code: str, entry: Mapping[str, Any]) -> str:
    """`mma_base (CUDA, sm_80)`, `pipelined, 2 stages (Triton, sm_80)`, `permuted, plain (...)`."""
    language = "Triton" if entry["compiler"].startswith("Triton") else "CUDA"
    name, _, sm = code.partition(" sm_")
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
        f"- {title(code, entry)}: " + ", ".join(f"`{text}`" for text in entry["layouts"])
        for code, entry in entries.items()
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
    """What was raced, where and when; and whether both kernels are still those."""
    race = (row.time, row.case, rival)
    both = [row, *(r for r in rows if (r.time, r.case, r.competitor) == race)]
    return f"{row.case} on {row.environment.gpu}, {row.time[:10]}{note(both)}"


def newest(triton: str, cuda_rung: str, rows: Sequence[Row]) -> tuple[Row | None, Quantiles | None]:
    """The newest row of the first of the `MEASURED` cases that has both, and the ratio."""
    for size, dtype, accumulate in MEASURED:
        case = Case(size, size, size, LAYOUT, dtype, accumulate)
        mine = [row for row in rows if (row.ladder, row.competitor) == (CUDA, cuda_rung)]
        both = [row for row in mine if row.case == case and triton in (row.versus or {})]
        if both:
            row = max(both, key=lambda row: row.time)
            return row, row.versus[triton].inverse
    return None, None
