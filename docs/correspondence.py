"""The proof behind docs/correspondence.md: `python -m docs.correspondence [--check]`, no GPU.

Compiles the rungs that the page speaks of, Triton's and CUDA's, reads their machine code, and
writes what it found to docs/correspondence.json, from which `docs.generate` makes the page's
tables. Counts are of instructions in the binary, not of executions.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from perf.report import spread
from perf.rows import CUDA, Row
from perf.stats import Quantiles
from tritemm.sass import count_instructions, count_of

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "correspondence.json"
#: The product that both sides are compiled for (CUDA's code does not depend on the sizes).
LAYOUT, DTYPE = "NT", "fp16"
#: Sizes, type and accumulator of the measured ratios: those of the newest rows that have any.
MEASURED = ((4096, "fp16", "fp32"), (4096, "bf16", "fp32"), (4096, "fp16", "fp16"))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where something is written: a file, from the repository's root, and text that it holds."""

    file: str
    text: str

    @property
    def link(self) -> str:
        return f"`{self.text}` in [{Path(self.file).name}](../{self.file})"


def cuda(file: str, text: str) -> Place:
    return Place(f"cuda_reference/{file}", text)


def rung(file: str, text: str) -> Place:
    return Place(f"tritemm/kernels/{file}.py", text)


@dataclasses.dataclass(frozen=True)
class Code:
    """A kernel to count in: a rung of either ladder; `word[2]` is a Triton rung's third config."""

    name: str
    sm: int

    @property
    def key(self) -> str:
        return f"{self.name} sm_{self.sm}"


@dataclasses.dataclass(frozen=True)
class Technique:
    """One section of the page.

    `by`: who does it on Triton's side. `codes` x `mnemonics` are the counts that prove it; with
    `order`, also the order of the loads and products of `codes`; with `layouts`, also the layouts
    of shared memory that Triton chose. `pairs` are (Triton rung, CUDA rung) whose speeds are
    compared.
    """

    name: str
    cuda: tuple[Place, ...]
    triton: tuple[Place, ...]
    by: str
    codes: tuple[Code, ...]
    mnemonics: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    order: bool = False
    layouts: bool = False

    @property
    def slug(self) -> str:
        """The anchor that GitHub gives the section's heading."""
        return re.sub(r"[^a-z0-9 -]", "", self.name.lower()).replace(" ", "-")


COMPILER, YOU = "the compiler", "you"

TECHNIQUES = (
    Technique(
        "Block tile",
        (cuda("include/tile.cuh", "BM = 256, BN = 128, BK = 32"),),
        (rung("k03_tiled", "BLOCK_M: tl.constexpr"),),
        f"{YOU} choose its size; {COMPILER} does the rest",
        (Code("mma_base", 80), Code("tiled", 80), Code("mma_base", 90), Code("tiled", 90)),
        ("HMMA", "HGMMA", "LDG.E.128", "STS.128", "BAR"),
        (("tiled", "mma_base"), ("tiled", "wmma_base")),
    ),
    Technique(
        "Warp tile",
        (cuda("include/tile.cuh", "WM = 64, WN = 64"), cuda("include/mma_tile.cuh", "WarpTile")),
        (rung("_host", "num_warps=8"),),
        f"{COMPILER}; you only say how many warps",
        (Code("mma_base", 80), Code("tiled", 80)),
        ("HMMA.16816.F32", "LDSM.16.M88.4"),
        (("tiled", "mma_base"),),
    ),
    Technique(
        "Vectorised copies",
        (cuda("include/copy.cuh", "reinterpret_cast<const uint4*>(from[i])"),),
        (rung("k03_tiled", "tl.load(a_ptrs)"),),
        f"{COMPILER}, if the pitch is a multiple of 16",
        (Code("mma_base", 80), Code("tiled", 80), Code("simt_naive", 80), Code("simt", 80)),
        ("LDG.E.128", "LDG.E.U16", "STG.E.128", "STG.E.U16"),
        (("tiled", "mma_base"), ("simt", "simt_naive")),
    ),
    Technique(
        "Padding",
        (cuda("wmma_padding.cu", "AB_ROW = BK / CHUNK + 1"),),
        (),
        f"nobody: {COMPILER} permutes instead",
        (Code("wmma_base", 80), Code("wmma_padding", 80), Code("tiled", 80)),
        ("LDS", "LDSM", "STS"),
        (("tiled", "wmma_padding"),),
    ),
    Technique(
        "Permutation",
        (cuda("mma_permuted.cu", "(chunk + row / 2) % AB_ROW"),),
        (),
        COMPILER,
        (Code("mma_base", 80), Code("mma_permuted", 80), Code("tiled", 80), Code("tiled", 90)),
        ("LDSM", "STS", "HMMA", "HGMMA"),
        (("tiled", "mma_permuted"),),
        layouts=True,
    ),
    Technique(
        "ldmatrix",
        (cuda("include/ptx.cuh", "ldmatrix.sync.aligned.m8n8.x4"),),
        (rung("_tile", "tl.dot(a, b, acc"),),
        COMPILER,
        (Code("wmma_base", 80), Code("mma_base", 80), Code("tiled", 80), Code("tiled", 90)),
        ("LDSM", "LDS", "HMMA", "HGMMA"),
        (("naive", "mma_naive"), ("naive", "wmma_naive"), ("tiled", "mma_base")),
    ),
    Technique(
        "Tile order",
        (cuda("include/raster.cuh", "inline Tile raster("),),
        (rung("_tile", "def raster("), rung("k04_swizzled", 'ORDER="grouped"')),
        f"{YOU}, on both sides",
        (Code("tiled", 90), Code("swizzled", 90)),
        ("HGMMA", "LDG", "STG", "BAR"),
        (("swizzled", "mma_base"), ("swizzled", "wmma_base")),
    ),
    Technique(
        "cp.async",
        (cuda("include/ptx.cuh", "cp.async.cg.shared.global"), cuda("mma_async.cu", "copy_async")),
        (rung("k07_pipelined", "num_stages=STAGES"),),
        f"{COMPILER}, once a loop has stages",
        (Code("mma_permuted", 80), Code("mma_async", 80), Code("tiled", 80), Code("pipelined", 80)),
        ("LDGSTS", "LDGDEPBAR", "DEPBAR", "LDG", "STS"),
        (("tiled", "mma_async"), ("tiled", "wmma_async")),
    ),
    Technique(
        "Stages",
        (cuda("mma_async_stage3.cu", "STAGES = 3"), cuda("include/ptx.cuh", "cp.async.wait_group")),
        (rung("k07_pipelined", "num_stages=STAGES"),),
        f"{YOU} choose how many; {COMPILER} does the rest",
        (
            Code("mma_async_stage2", 80), Code("mma_async_stage3", 80),
            Code("mma_async_stage4", 80), Code("pipelined[4]", 80), Code("pipelined[3]", 80),
            Code("pipelined[2]", 80),
        ),
        ("LDGSTS", "LDGDEPBAR", "DEPBAR", "BAR", "HMMA"),
        (
            ("pipelined", "mma_async_stage2"), ("pipelined", "mma_async_stage3"),
            ("pipelined", "mma_async_stage4"), ("pipelined", "wmma_async_stage3"),
        ),
    ),
    Technique(
        "Register prefetch",
        (cuda("mma_async_pg2s_ps2r.cu", "fragments[(k + 1) % 2].load"),),
        (),
        "nobody: ptxas orders the loads within a step",
        (
            Code("mma_async_pg2s", 80), Code("mma_async_pg2s_ps2r", 80),
            Code("mma_async_stage3", 80), Code("pipelined[3]", 80),
        ),
        ("LDSM", "HMMA", "BAR"),
        (("pipelined", "mma_async_pg2s"), ("pipelined", "mma_async_pg2s_ps2r")),
        order=True,
    ),
    Technique(
        "WGMMA",
        (cuda("include/wgmma.cuh", "matrix_descriptor"), cuda("wgmma_m64n8k16.cu", "a_place")),
        (rung("_tile", "tl.dot(a, b, acc"),),
        COMPILER,
        (
            Code("wgmma_m64n8k16", 90), Code("wgmma_tma", 90), Code("naive", 90),
            Code("tiled", 90), Code("tma", 90),
        ),
        ("HGMMA", "WARPGROUP", "LDSM", "HMMA"),
        (("naive", "wgmma_m64n8k16"), ("tma", "wgmma_tma")),
    ),
    Technique(
        "TMA loads and stores",
        (cuda("include/tma.cuh", "tma_load("), cuda("include/tma.cuh", "cuTensorMapEncodeTiled")),
        (
            rung("_host", "TensorDescriptor("), rung("_tile", "desc.load("),
            rung("_tile", "c_desc.store("),
        ),
        f"{YOU} ask for it; {COMPILER} does the rest",
        (
            Code("wgmma_tma", 90), Code("wgmma_persistent", 90), Code("tiled", 90),
            Code("tma", 90),
        ),
        ("UTMALDG", "UTMASTG", "LDG", "STG"),
        (("tma", "wgmma_tma"),),
        layouts=True,
    ),
    Technique(
        "mbarrier ring",
        (cuda("include/mbarrier.cuh", "struct Ring"), cuda("wgmma_pipelined.cu", "barrier_expect")),
        (rung("k08_tma", "num_stages=STAGES"),),
        COMPILER,
        (Code("wgmma_tma", 90), Code("wgmma_pipelined", 90), Code("tma", 90)),
        ("SYNCS", "UTMALDG", "BAR"),
        (("tma", "wgmma_pipelined"),),
    ),
    Technique(
        "Warp specialisation",
        (
            cuda("include/roles.cuh", "setmaxnreg.inc.sync"),
            cuda("wgmma_warp_specialized.cu", "give_registers"),
        ),
        (),
        "nobody yet",
        (Code("wgmma_warp_specialized", 90), Code("wgmma_persistent", 90), Code("persistent", 90)),
        ("USETMAXREG", "HGMMA", "UTMALDG", "SYNCS"),
        (("tma", "wgmma_warp_specialized"), ("persistent", "wgmma_persistent")),
    ),
    Technique(
        "Persistent grid",
        (cuda("wgmma_persistent.cu", "i += gridDim.x"),),
        (rung("k09_persistent", "tl.num_programs(0), flatten=True"),),
        f"{YOU} write the loop; {COMPILER} fuses it with the loop over K",
        (Code("wgmma_persistent", 90), Code("persistent", 90), Code("tma", 90)),
        ("UTMALDG", "UTMASTG", "UTMACMDFLUSH", "SYNCS", "BAR"),
        (("persistent", "wgmma_persistent"),),
    ),
    Technique(
        "Clusters and multicast",
        (
            cuda("include/tma.cuh", ".multicast::cluster"),
            cuda("wgmma_cluster.cu", "__cluster_dims__"),
        ),
        (),
        "nobody: `tl` has no multicast",
        (Code("wgmma_cluster", 90), Code("wgmma_persistent", 90), Code("persistent", 90)),
        ("UTMALDG.2D.MULTICAST", "UTMALDG", "UCGABAR_ARV"),
        (("persistent", "wgmma_cluster"),),
    ),
    Technique(
        "stmatrix epilogue",
        (
            cuda("wgmma_cluster.cu", "stmatrix.sync.aligned"),
            cuda("include/mma_tile.cuh", "store_tile"),
        ),
        (rung("_tile", "def store_tile("),),
        COMPILER,
        (
            Code("mma_permuted", 90), Code("wgmma_persistent", 90), Code("wgmma_cluster", 90),
            Code("pipelined", 90), Code("persistent", 90),
        ),
        ("STSM", "STS", "LDS", "LDSM", "UTMASTG", "STG"),
        (("persistent", "wgmma_persistent"), ("persistent", "wgmma_cluster")),
    ),
)  # fmt: skip


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

    from tritemm import asm

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
    found = re.findall(r"#ttg\.((?:swizzled|nvmma)_shared<\{.*?\}>)", ir)
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
            "; ".join(place.link for place in technique.triton) or "nowhere",
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
    if technique.order:
        orders = [
            f"{title(code, entry)}\n  {entry['order']}" for code, entry in entries.items() if entry
        ]
        lines += ["", "```", *orders, "```"]
    if technique.pairs:
        lines += ["", measured(technique.pairs, rows)]
    return "\n".join(lines)


def title(code: Code, entry: Mapping[str, Any]) -> str:
    """`mma_base (CUDA, sm_80)`, `pipelined, 2 stages (Triton, sm_80)`."""
    name, _, index = code.name.partition("[")
    language = "Triton" if entry["compiler"].startswith("Triton") else "CUDA"
    stages = re.search(r"\d+ stages?", entry["kernel"]) if index else None
    return f"{name}{', ' + stages[0] if stages else ''} ({language}, sm_{code.sm})"


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
        origin = f"{row.case} on {row.environment.gpu}" if row else ""
        text = f"{triton} / {cuda_rung}"
        found.setdefault(origin, []).append(f"{text} {spread(ratio)}" if ratio else text)
    lines = [
        f"Triton's speed over CUDA's, {origin}: {'; '.join(texts)}."
        for origin, texts in found.items()
        if origin
    ]
    if "" in found:
        lines.append(f"Triton's speed over CUDA's, not yet measured: {'; '.join(found[''])}.")
    return "\n".join(lines)


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
