"""The machine code of both ladders, counted: `python -m docs.record code`, no GPU.

Compiles every rung for sm_90, and the kernels that docs/correspondence.md asks for, all for one
product, on whose sizes CUDA's code does not depend. What their machine code has is written to
docs/code.json, from which `make docs` makes tables. Counts are of instructions in the binary, not
of executions.

A kernel is called by its rung, of either ladder, and its architecture: `tiled sm_80`; `word[2]` is
a Triton rung's third config.
"""

import functools
import itertools
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton

from cuda_reference import cubin, toolkit
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf.competitors import rung_of
from perf.sources import hashes
from tritemm.compile import asm, pool
from tritemm.compile.sass import count_instructions, count_of
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel

DATA = Path(__file__).with_suffix(".json")
PAGE = DATA.with_name("correspondence.md")
LAYOUT, DTYPE, ARCH = "NT", "bf16", 90
#: Groups that the product's rows are cut into, for the rung that is for groups.
GROUPS = 8
#: Template arguments of what is counted of a CUDA rung: the first of these that it has. Those are
#: the type of the operands, that of the sums and whether B is stored by rows, as far as the rung
#: has a choice. Those of wmma are of fp16 and have the type of the sums alone.
ARGUMENTS = (
    "__nv_bfloat16, float, false", "__nv_bfloat16, float", "__nv_bfloat16, false", "__nv_bfloat16",
    "float",
)  # fmt: skip


@functools.cache
def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def count(entry: Mapping[str, Any], mnemonic: str) -> int:
    """Instructions whose full mnemonic begins with this one: HGMMA, UTMALDG.2D.MULTICAST."""
    return count_of(mnemonic, {}, entry["variants"])


def asked() -> list[str]:
    """Every kernel that is compiled, once."""
    found = re.findall(r"^in: (.+)$", PAGE.read_text(), re.MULTILINE)
    every = [word for words in found for word in words.split(", ")]
    return list(dict.fromkeys([*every, *(f"{k.name} sm_{ARCH}" for k in (*RUNGS, *CUDA_RUNGS))]))


def record(chosen: Sequence[str] = ()) -> dict[str, Any]:
    """What these kernels compile to, all of them unless some are given.

    Raises RuntimeError, `toolkit.Unavailable` among them, where one can't be compiled.
    """
    own = {kernel.name: kernel for kernel in RUNGS}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # of the worker that compiles Triton's rungs
        pool.shared.cache_clear()
        for key in chosen or asked():
            name, _, sm = key.partition(" sm_")
            kernel = own.get(rung_of(name))
            entry = _triton(kernel, name, int(sm)) if kernel else _cuda(name, int(sm))
            ladder = "triton" if kernel else "cuda"
            found[key] = {"code": hashes()[ladder, rung_of(name)], **entry}
    return found


def _triton(kernel: Kernel, word: str, sm: int) -> dict[str, Any]:
    index = int(word.partition("[")[2].rstrip("]") or 0)
    job = asm.Job(kernel.name, sm, layout=LAYOUT, config=index, **cut(kernel))
    dumped = Path(os.environ["TRITON_CACHE_DIR"])
    before = set(dumped.glob("*/*.ttgir"))
    result = asm.compile_many([job], "text", apart=True)[0]
    if isinstance(result, asm.Refusal):
        raise RuntimeError(f"{word} sm_{sm}: {result.reason}")
    new = set(dumped.glob("*/*.ttgir")) - before
    return {
        "compiler": compiler(), "kernel": result.config, "variants": result.variants,
        "registers": result.registers, "shared": result.shared, "order": order(result.sass),
        "layouts": layouts("\n".join(ir.read_text() for ir in new)),
        "lines": _signs(result.sass, kernel, sm),
    }  # fmt: skip


def cut(kernel: Kernel) -> dict[str, Any]:
    """What a job says of groups: nothing, unless the rung is for them."""
    return {"batch": (GROUPS,), "groups": "m"} if kernel.policy.branch == "groups" else {}


def compiler() -> str:
    """What compiles Triton's rungs here; another release makes other code of them."""
    return f"Triton {triton.__version__}"


def _cuda(name: str, sm: int) -> dict[str, Any]:
    compiled = cubin.compile_cubin(name, sm)
    own = counted([function.name for function in compiled.functions])
    (function,) = (function for function in compiled.functions if function.name == own)
    # Its part of the cubin's disassembly.
    parts = re.split(r"^\s*Function : \S+\s*$", compiled.sass, flags=re.MULTILINE)[1:]
    known = (function.mix, function.variants)
    sass = next(part for part in parts if count_instructions(part) == known)
    return {
        "compiler": f"nvcc {toolkit.nvcc().version}", "kernel": own,
        "variants": function.variants, "registers": function.registers, "order": order(sass),
    }  # fmt: skip


def counted(functions: Sequence[str]) -> str:
    """Which of a CUDA rung's functions is, by `ARGUMENTS`."""
    by_arguments = {name.partition("<")[2].partition(">")[0]: name for name in functions}
    return next(by_arguments[each] for each in ARGUMENTS if each in by_arguments)


def _signs(sass: str, kernel: Kernel, sm: int) -> list[str]:
    """The first instruction of each of the rung's signs, as the disassembler writes it."""
    found = []
    for sign in kernel.signs.get(sm, kernel.signs[max(kernel.signs)])[0]:
        pattern = rf"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?({sign}\b.*?) *;"
        first = re.search(pattern, sass)
        found += [re.sub(r"\s+", " ", first[1])] if first else []
    return found


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


def stale() -> list[str]:
    """Kernels that are not recorded, or whose sources are others than those that were compiled."""
    known = {name: code for (_, name), code in hashes().items()}
    recorded = {key: entry["code"] for key, entry in load().items()}
    wanted = {key: known[rung_of(key.partition(" sm_")[0])] for key in asked()}
    return sorted(key for key, _ in wanted.items() ^ recorded.items())


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is recorded of the kernels of `new` and is not so, a line each.

    Another compiler may give other counts; the same one may not.
    """
    found = []
    for key, entry in new.items():
        was = old.get(key)
        if was is None or (was != entry and was["compiler"] == entry["compiler"]):
            found.append(
                f"{key}: not what {entry['compiler']} makes of it" if was else f"{key}: new"
            )
    return found
