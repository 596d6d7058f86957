"""What the kernel compiles to for sm_100, without a GPU: `python -m docs.record blackwell`.

It is compiled in a process of its own, since in this one kernels may be interpreted.
"""

import collections
import functools
import importlib.util
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from docs.code import differences as differences  # one meaning of stale
from tritemm.compile import pool
from tritemm.compile.driver import standing_for
from tritemm.compile.sass import count_instructions, count_of, parse_usage, run_tool

from .shape import VERSIONS

DATA = Path(__file__).with_suffix(".json")
ARCH, SIZE = 100, 4096
#: Columns of 32 bits that an SM's tensor memory has.
COLUMNS = 512
#: What asks for a tile; `sass.GROUPS` are those of the rungs, none of which does.
ASKS = "UGETNEXTWORKID"
#: Instructions whose first line is recorded, in the order of the page.
SIGNS = ("UTMALDG", "UTCHMMA", "UTCBAR", "UTCATOMSWS", "LDTM", "UTMASTG", ASKS)


@functools.cache
def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def why_not() -> str | None:
    """Why this Triton can't compile the kernel, or None."""
    if importlib.util.find_spec("triton.experimental.gluon.language.nvidia.blackwell.clc"):
        return None
    return f"cluster launch control needs Triton 3.8; this is {triton.__version__}"


def compile_all() -> dict[str, dict[str, Any]]:
    """What `compiled` says of each version."""
    if reason := why_not():
        raise RuntimeError(reason)
    worker = pool.Worker()
    try:
        return {name: worker.ask(compiled, name) for name in VERSIONS}
    finally:
        worker.close()


def compiled(name: str) -> dict[str, Any]:
    """The texts of a version, and what it takes; in a process that doesn't interpret."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from .kernel import blackwell_kernel

    shape = VERSIONS[name]

    def descriptor(*box: int) -> Any:
        halves = [[1, 0]] if shape.CTAS > 1 else None
        layout = gl.NVMMASharedLayout.get_default_for(list(box), gl.bfloat16, cga_layout=halves)
        matrix = torch.empty(SIZE, SIZE, dtype=torch.bfloat16, device="meta")
        return TensorDescriptor.from_tensor(matrix, list(box), layout)

    boxes = (
        (shape.BLOCK_M, shape.BLOCK_K), (shape.BLOCK_N, shape.BLOCK_K), (shape.BLOCK_M, shape.EPI_N)
    )  # fmt: skip
    with standing_for(ARCH):
        made = blackwell_kernel.warmup(
            *(descriptor(*box) for box in boxes), SIZE, SIZE, SIZE, shape.constants(gl.constexpr),
            grid=(1,), num_warps=4, num_ctas=shape.CTAS,
        )  # fmt: skip
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        registers, spills = parse_usage(run_tool("cuobjdump", "-res-usage", file.name))
        sass = run_tool("nvdisasm", "-ndf", "-c", file.name)
    return {
        "registers": registers, "spills": spills, "shared": made.metadata.shared,
        "columns": made.metadata.tmem_size, "warps": made.metadata.num_warps,
        "ptx": made.asm["ptx"], "sass": sass,
    }  # fmt: skip


def record() -> dict[str, Any]:
    """What docs/blackwell/code.json has of each version."""
    return {name: summary(name, code) for name, code in compile_all().items()}


def summary(name: str, code: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, resources and the first line of each sign."""
    taken = ("registers", "spills", "shared", "columns", "warps")
    return {
        "compiler": f"Triton {triton.__version__}", "kernel": VERSIONS[name].words,
        **{each: code[each] for each in taken}, "variants": variants(code["sass"]),
        "lines": [line for sign in SIGNS for line in first(sign, code["sass"])],
    }  # fmt: skip


def variants(sass: str) -> dict[str, int]:
    """Instructions by full mnemonic."""
    return count_instructions(sass)[1] | collections.Counter(re.findall(rf"{ASKS}[.\w]*", sass))


def first(sign: str, sass: str) -> list[str]:
    """The first instruction of a sign, as the disassembler writes it; none if there is none."""
    found = re.search(rf"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?({sign}\b.*?) *;", sass)
    return [re.sub(r"\s+", " ", found[1])] if found else []


def count(entry: Mapping[str, Any], mnemonic: str) -> int:
    """Instructions whose full mnemonic begins with this one: UTCHMMA, UTCHMMA.2CTA."""
    return count_of(mnemonic, {}, entry["variants"])
