"""docs/traps.md: each trap names a test; and what of it is read off the sources."""

import re
from pathlib import Path

import pytest

from cuda_reference import cubin, source
from tests.cuda.test_build import flags_of

pytestmark = [pytest.mark.host, pytest.mark.once]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "traps.md").read_text()
FILES = sorted([*source.ROOT.rglob("*.cu"), *source.ROOT.rglob("*.cuh")])
files = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def test_each_trap_names_a_test():
    """`tests/docs/test_links.py` looks for it."""
    _, *traps = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    assert len(traps) == 13 and all("\n- `tests/" in trap for trap in traps)


#: Instructions whose effect is not in their operands alone.
TOUCHES = re.compile(
    r"ldmatrix|stmatrix|cp\.async|mbarrier|fence|\bbar\.|barrier\.|st\.(?:global|shared)|"
    r"wmma\.(?:load|store)|wgmma\.(?:commit|wait)"
)


def statements(text):
    """Every asm statement, from its word to the semicolon behind its parenthesis."""
    text = re.sub(r"//[^\n]*", "", text)
    for match in re.finditer(r"\basm(?: volatile)?\s*\(", text):
        depth, at, quoted = 1, match.end(), False
        while depth:
            quoted ^= text[at] == '"'
            depth += 0 if quoted else {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield text[match.start() : at]


@files
def test_asm_that_touches_memory_says_so(file):
    for statement in statements(file.read_text()):
        if TOUCHES.search(statement):
            assert "volatile" in statement and '"memory"' in statement, statement


def test_a_statement_without_the_clobber_is_told():
    bad = 'asm volatile("ldmatrix.sync {%0}, [%1];" : "=r"(x) : "r"(at(p)));'
    (found,) = statements(f"f(); {bad} // asm(\ng();")
    assert found + ";" == bad and TOUCHES.search(found) and '"memory"' not in found


@pytest.mark.wide
@pytest.mark.parametrize("name", [n for n in source.names() if "wgmma" in n])
def test_stores_are_fenced_before_wgmma_reads_them(nvcc, name):
    """Where threads write shared memory themselves, not TMA."""
    for function in cubin.compile_cubin(name, "90a", flags_of(name)).functions:
        if function.count("STS") and not function.count("UTMALDG"):
            assert function.count("FENCE")


def test_what_a_descriptor_names_is_aligned():
    """Shared arrays whose address becomes a descriptor say how they are aligned."""
    found = []
    for file in FILES:
        text = file.read_text()
        if "_descriptor(" not in text and "WgmmaTile" not in text:
            continue
        shared = re.findall(r"__shared__[^;{]*;", text)
        found += [line for line in shared if re.search(r"tile_|shared\[|dynamic", line)]
    assert len(found) >= 4 and all("align" in line for line in found), found


@files
def test_who_leaves_early_meets_no_barrier(file):
    """A `return` in a kernel is behind a condition that its comment calls a whole warp's, or
    no barrier of the block follows."""
    text = file.read_text()
    for match in re.finditer(r"^    if \([^;{]*\) return;.*$", text, re.MULTILINE):
        rest = text[match.end() :]
        kernel = rest[: rest.find("\n}")]
        assert "__syncthreads" not in kernel and "named_barrier" not in kernel
        if re.search(r"__syncwarp|mma_sync|ldmatrix|mma<", kernel):
            assert "a whole warp" in match.group()
