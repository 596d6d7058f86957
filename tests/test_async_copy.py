"""The rung whose producers are threads: what they copy with, and for which problems."""

import random
import re
import struct

import pytest
import torch

from tritemm import asm, candidates, dispatch
from tritemm.kernels import _ptx, k17_async_copy
from tritemm.problem import Problem

from .choosing import H200, problem

KERNEL = k17_async_copy.KERNEL
#: Bytes: a few scalars that a tile or a step needs once.
SPILLED = 32


@pytest.fixture(scope="module")
def codes():
    """job -> its code: a third of the tiles in each layout, with pitches of 8 elements and more."""
    jobs = []
    for i, layout in enumerate(asm.LAYOUTS):
        job = asm.Job("async_copy", M=2056, N=1048, K=2104, layout=layout)
        found = {(c.BLOCK_M, c.BLOCK_N): c for c in asm.configs_of(job)}
        jobs += [
            job.__class__(**vars(job) | {"config": c}) for c in list(found.values())[i % 3 :: 3]
        ]
    return dict(zip(jobs, asm.compile_many(jobs, processes=2), strict=True))


def test_every_copy_is_16_bytes_wide(codes):
    """As many as the tiles of A and B have, 128 threads at a time; and one arrival of each."""
    for job, code in codes.items():
        c = job.config
        sixteens = (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K * 2 // 16
        assert set(re.findall(r"cp\.async\.c[ag]\.[^;]*\], (0x\w+|\d+), ", code.ptx)) == {"0x10"}
        assert code.variants["LDGSTS.E.BYPASS.128"] == code.count("LDGSTS") == sixteens // 128
        assert len(re.findall(r"cp\.async\.mbarrier\.arrive\.noinc", code.ptx)) == 1
        assert code.fits and code.spills <= SPILLED


def test_wgmma_is_told_of_what_threads_wrote(codes):
    """A fence for each step, behind the wait and before the first product of the loop."""
    for code in codes.values():
        loop = code.ptx[: code.ptx.index("wgmma.mma_async")]
        assert loop.rfind("fence.proxy.async") > loop.rfind("mbarrier.try_wait") > 0


def test_it_is_considered_where_lines_straddle_those_of_l2():
    def names(*size, **options):
        return {rung.name for rung, _ in candidates.candidates(problem(*size, **options))}

    assert "async_copy" not in names(2048, 2048, 2048)
    assert "async_copy" in names(2056, 2056, 2056)
    assert "async_copy" in names(2048, 2048, 2064)
    assert "async_copy" in names(2048, 2056, 2048, layout="NN")
    assert "async_copy" not in names(2056, 2056, 2048), "K is the pitch of both"
    assert dispatch.choose(problem(2048, 2048, 2048), "async_copy").kernel is KERNEL


def test_what_has_no_contiguous_axis_is_refused():
    a = torch.empty(64, 128, dtype=torch.bfloat16, device="meta")[:, ::2]
    b, c = (torch.empty(64, 64, dtype=torch.bfloat16, device="meta") for _ in range(2))
    asked = Problem.of(a, b, c, device=H200)
    with pytest.raises(ValueError, match=r"a's strides are \(128, 2\); rows or columns must be"):
        dispatch.choose(asked, "async_copy")


@pytest.mark.parametrize(
    ("size", "whole"),
    [
        ((64, 64, 72), (True, True)),
        ((64, 60, 64), (True, False)),
        ((60, 64, 68), (False, True)),
        ((33, 35, 37), (False, False)),
    ],
)
def test_lines_that_are_not_whole_vectors_are_shifted(size, whole):
    asked = problem(*size, layout="NN")
    fixed = KERNEL.arguments.fixed(asked, KERNEL.configs(asked)[0])
    assert (fixed["A_WHOLE"], fixed["B_WHOLE"]) == whole


def test_shifts_load_aligned_vectors_and_store_whole_ones():
    """Nothing is read or stored by the element."""
    for layout in asm.LAYOUTS:
        job = asm.Job("async_copy", M=333, N=777, K=401, layout=layout)
        code = asm.compile_problem(job)
        c = asm.configs_of(job)[0]
        vectors = (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K * 2 // 16 // 128
        copiers = 2
        assert code.count("LDG") == code.variants["LDG.E.128"] == copiers * 2 * vectors
        assert code.spills <= SPILLED
        assert not code.count("LDGSTS") and not code.count("ARRIVES")
        assert code.variants["STS.128"] == copiers * vectors


# The shifts, in Python


class Thread:
    """Runs straight-line PTX on `memory`; `reads` are the addresses of vectors."""

    def __init__(self, memory: bytes, registers: dict):
        self.memory, self.registers, self.reads = memory, registers, []

    def run(self, text: str):
        for line in text.splitlines():
            found = re.match(r"(?:@(\w+) )?([\w.:]+) (.+);$", line)
            if found and not line.startswith("."):
                predicate, operation, words = found.groups()
                if not predicate or self.registers[predicate]:
                    self.step(operation, words)

    def step(self, operation, words):
        vector = re.search(r"\{(.*)\}", words)
        to, *rest = (word.strip() for word in re.sub(r"\{.*\}", "vector", words).split(","))
        if operation == "ld.global.v4.b32":
            base, _, offset = rest[0].strip("[]").partition(" + ")
            address = self.registers[base] + int(offset or 0)
            assert address % 16 == 0
            self.reads.append(address)
            names = [name.strip() for name in vector[1].split(",")]
            loaded = struct.unpack_from("<4I", self.memory, address)
            self.registers.update(zip(names, loaded, strict=True))
        else:
            known = self.registers
            values = (int(w) if w.lstrip("-").isdigit() else known[w] for w in rest)
            known[to] = OPERATIONS[operation](*values)


def _signed(value):
    return (value + 2**31) % 2**32 - 2**31


OPERATIONS = {
    "cvt.u32.u64": lambda a: a % 2**32,
    "and.b32": lambda a, b: a & b & 0xFFFFFFFF,
    "and.b64": lambda a, b: a & b,
    "add.s32": lambda a, b: _signed(a + b),
    "mad.lo.s32": lambda a, b, c: _signed(a * b + c),
    "max.s32": max,
    "bmsk.clamp.b32": lambda a, b: (1 << min(b, 32)) - 1 << a & 0xFFFFFFFF,
    "setp.gt.s32": lambda a, b: a > b,
    "setp.ne.u32": lambda a, b: a != b,
    "setp.gt.and.s32": lambda a, b, c: a > b and c,
    "mov.b32": lambda a: a,
    "selp.b32": lambda a, b, c: a if c else b,
    "shl.b32": lambda a, b: (a << b) % 2**32,
    "shf.r.clamp.b32": lambda a, b, c: (b << 32 | a) >> min(c, 32) & 0xFFFFFFFF,
}


def test_vectors_are_cut_at_any_address():
    """Inside a line, over its end or beyond; no vector is read that has nothing of the line."""
    rng = random.Random(0)
    memory = rng.randbytes(1 << 12)
    text = _ptx._cut_text()
    for _ in range(5000):
        line, size = 2 * rng.randrange(8, 500), 2 * rng.randrange(1, 400)
        start = line + 2 * rng.randrange(size // 2 + 20)
        left = line + size - start
        if rng.random() < 0.1:
            size, left = 0, -600  # no line of the matrix
        piece = memory[start:][: max(0, min(16, left))].ljust(16, b"\0")
        thread = Thread(memory, {"$4": start, "$8": left})
        thread.run(text)
        assert [thread.registers[f"${i}"] for i in range(4)] == list(struct.unpack("<4I", piece))
        assert all(line < at + 16 and at < line + size for at in thread.reads)
