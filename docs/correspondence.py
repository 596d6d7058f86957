"""The proof behind docs/correspondence.md: `python -m docs.correspondence [--check]`, no GPU.

Compiles the rungs that the page speaks of, Triton's and CUDA's, reads their machine code, and
writes what it found to docs/correspondence.json, from which `docs.generate` makes the page's
tables. Counts are of instructions in the binary, not of executions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.case import Case
from perf.competitors import rung_of
from perf.experiments.profile import CONFLICTS
from perf.rows import CUDA, RESULTS, Row
from perf.rungs import told
from perf.sources import CHANGED, hashes, note
from perf.stats import Quantiles
from perf.tables import Table, markdown, spread
from tritemm.compile.sass import count_instructions, count_of

from .techniques import TECHNIQUES, Code, Technique

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "correspondence.json"
#: What `perf profile --json` printed, a line each.
PROFILES = RESULTS / "profile" / "nvidia-h200.jsonl"
#: The product that both sides are compiled for (CUDA's code does not depend on the sizes).
LAYOUT, DTYPE = "NT", "fp16"
#: Sizes, type and accumulator of the measured ratios: those of the newest rows that have any.
MEASURED = ((4096, "fp16", "fp32"), (4096, "bf16", "fp32"), (4096, "fp16", "fp16"))


# The recorded file


def codes() -> list[Code]:
    """Every kernel that the page counts in, once."""
    return list({code.key: code for technique in TECHNIQUES for code in technique.codes}.values())


def cited(code: Code) -> set[str]:
    """The mnemonics that the page counts in it."""
    return {
        name
        for technique in TECHNIQUES
        if code.key in {c.key for c in technique.codes}
        for name in technique.mnemonics
    }


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
        was, now = old["code"].get(code.key), new["code"].get(code.key)
        if was is None or now is None:
            if now is not None:
                found.append(f"{code.key}: not recorded")
            continue
        compiler = now["compiler"]
        if was["compiler"] == compiler:
            if was != now:
                found.append(f"{code.key}: not what {compiler} makes of it")
            continue
        for name in sorted(cited(code)):
            counts = [count(entry, name) for entry in (was, now)]
            if bool(counts[0]) != bool(counts[1]):
                found.append(f"{code.key}: {counts[0]} {name} recorded; {compiler} has {counts[1]}")
    recorded = {code.key for code in codes()}
    return found + [f"{key}: recorded, but not spoken of" for key in old["code"].keys() - recorded]


# Compiling


def record(say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Compile everything; raises RuntimeError, `toolkit.Unavailable` among them, where it can't."""
    entries = {}
    for code in codes():
        say(code.key)
        entries[code.key] = _cuda(code) if _is_cuda(code) else _triton(code)
    return {"problem": f"4096 x 4096 x 4096 {LAYOUT}, {DTYPE}, fp32 accumulator", "code": entries}


def _is_cuda(code: Code) -> bool:
    return (ROOT / "cuda_reference" / f"{code.name}.cu").exists()


def _cuda(code: Code) -> dict[str, Any]:
    from cuda_reference import toolkit
    from cuda_reference.cubin import compile_cubin

    cubin = compile_cubin(code.name, code.sm)
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


def _triton(code: Code) -> dict[str, Any]:
    import triton

    from tritemm.compile import asm

    name, _, index = code.name.partition("[")
    config = int(index.rstrip("]") or 0)
    job = asm.Job(name, code.sm, layout=LAYOUT, dtype=DTYPE, config=config)
    before = set(_dumped())
    result = asm.compile_many([job], "text", processes=1)[0]
    if isinstance(result, asm.Refusal):
        raise RuntimeError(f"{code.key}: {result.reason}")
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
    texts = {technique.slug: proof(technique, data, rows) for technique in TECHNIQUES}
    return {"techniques": summary(rows), "compilers": compilers(data), **texts}


def compilers(data: Mapping[str, Any]) -> str:
    names = sorted({entry["compiler"] for entry in data["code"].values()})
    return f"Compiled by {' and '.join(names)}: {data['problem']}."


def summary(rows: Sequence[Row]) -> str:
    """One line per technique: where it is written on each side, and by whom in Triton."""
    lines = ["| technique | in CUDA | in Triton | who does it in Triton |", "|---|---|---|---|"]
    for technique in TECHNIQUES:
        cells = [
            f"[{technique.name}](#{technique.slug})",
            "; ".join(place.link for place in technique.cuda),
            "; ".join(place.link for place in technique.triton),
            technique.by,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def proof(technique: Technique, data: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The counts of one technique, and the measured ratios."""
    names = [f"`{name}`" for name in technique.mnemonics]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    entries = {code: data["code"].get(code.key) for code in technique.codes}
    for code, entry in entries.items():
        if entry:
            counts = [str(count(entry, name)) for name in technique.mnemonics]
            lines.append(f"| {title(code, entry)} | " + " | ".join(counts) + " |")
    if technique.layouts:
        lines += ["", *_layouts(entries)]
    if technique.conflicts:
        lines += ["", conflicts(technique.conflicts)]
    if technique.order:
        orders = [
            f"{title(code, entry)}\n  {entry['order']}" for code, entry in entries.items() if entry
        ]
        lines += ["", "```", *orders, "```"]
    if technique.pairs:
        lines += ["", measured(technique.pairs, rows)]
    return "\n".join(lines)


def title(code: Code, entry: Mapping[str, Any]) -> str:
    """`mma_base (CUDA, sm_80)`, `pipelined, 2 stages (Triton, sm_80)`, `permuted, plain (...)`."""
    language = "Triton" if entry["compiler"].startswith("Triton") else "CUDA"
    which = told(code.name, entry["kernel"])
    return f"{rung_of(code.name)}{which} ({language}, sm_{code.sm})"


def conflicts(names: Sequence[str]) -> str:
    """Bank conflicts in shared memory, of the newest profile of each rung."""
    profiles = [json.loads(line) for line in PROFILES.read_text().splitlines()]
    newest = {profile["rung"]: profile for profile in profiles}  # lines are in the order of time
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


def _layouts(entries: Mapping[Code, Mapping[str, Any] | None]) -> list[str]:
    return [
        f"- {title(code, entry)}: " + ", ".join(f"`{text}`" for text in entry["layouts"])
        for code, entry in entries.items()
        if entry and entry.get("layouts")
    ]


def measured(pairs: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    """The speed of each Triton rung over that of its CUDA twin, from the newest rows."""
    found: dict[str, list[str]] = {}
    for triton, cuda_rung in pairs:
        row, ratio = newest(triton, cuda_rung, rows)
        origin = origin_of(row, triton, rows) if row else ""
        text = f"{triton} / {cuda_rung}"
        found.setdefault(origin, []).append(f"{text} {spread(ratio, ratio.tie)}" if ratio else text)
    lines = [
        f"Triton's speed over CUDA's, {origin}: {'; '.join(texts)}."
        for origin, texts in found.items()
        if origin
    ]
    if "" in found:
        lines.append(f"Triton's speed over CUDA's, not yet measured: {'; '.join(found[''])}.")
    return "\n".join(lines)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # of the worker that compiles Triton's rungs
        try:
            new = record(lambda text: print(text, file=sys.stderr, flush=True))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 2
    if check:
        found = differences(load(), new)
        for line in found:
            print(f"{line}; run `python -m docs.correspondence`")
        return int(bool(found))
    DATA.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
    print(f"wrote {DATA.relative_to(ROOT)}; now run `make docs`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
