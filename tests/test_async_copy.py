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
        assert code.fits and not code.spills and not code.local


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
    """Both paths, with and without the end of a line; nothing is read or stored by the element."""
    for layout in asm.LAYOUTS:
        job = asm.Job("async_copy", M=333, N=777, K=401, layout=layout)
        code = asm.compile_problem(job)
        c = asm.configs_of(job)[0]
        vectors = (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K * 2 // 16 // 128
        assert code.variants["LDG.E.128"] == 4 * vectors == code.count("LDG")
        assert not code.spills and not code.count("LDGSTS") and not code.count("ARRIVES")
        assert code.variants["STS.128"] == vectors


# The shifts, on 32 lanes in Python


class Warp:
    """Runs straight-line PTX of 32 lanes on `memory`; `reads` are the addresses of vectors."""

    def __init__(self, memory: bytes, registers: list[dict]):
        self.memory, self.lanes, self.reads = memory, registers, []

    def run(self, text: str):
        for line in text.splitlines():
            found = re.match(r"(?:@(\w+) )?([\w.:]+) (.+);$", line)
            if found and not line.startswith("."):
                self.step(*found.groups())

    def step(self, predicate, operation, words):
        before = [dict(lane) for lane in self.lanes]
        vector = re.search(r"\{(.*)\}", words)
        names = [word.strip() for word in re.sub(r"\{.*\}", "vector", words).split(",")]
        for number, lane in enumerate(self.lanes):
            if predicate and not before[number][predicate]:
                continue

            def value(word, number=number):
                if word == "%laneid":
                    return number
                return int(word) if word.lstrip("-").isdigit() else before[number][word]

            if operation == "ld.global.v4.b32":
                base, _, offset = names[1].strip("[]").partition(" + ")
                address = value(base) + int(offset or 0)
                assert address % 16 == 0
                self.reads.append(address)
                loaded = struct.unpack_from("<4I", self.memory, address)
                lane.update(zip((n.strip() for n in vector[1].split(",")), loaded, strict=True))
            elif operation == "shfl.sync.down.b32":
                segment, last = int(names[3]) >> 8, int(names[3]) & 31
                most = number & segment | last & ~segment
                source = number + int(names[2])
                lane[names[0]] = before[source if source <= most else number][names[1]]
            else:
                lane[names[0]] = OPERATIONS[operation](*map(value, names[1:]))


def _signed(value):
    return (value + 2**31) % 2**32 - 2**31


OPERATIONS = {
    "cvt.u32.u64": lambda a: a % 2**32,
    "and.b32": lambda a, b: a & b & 0xFFFFFFFF,
    "and.b64": lambda a, b: a & b,
    "add.s32": lambda a, b: _signed(a + b),
    "sub.u32": lambda a, b: (a - b) % 2**32,
    "max.s32": lambda a, b: max(_signed(a), _signed(b)),
    "min.s32": lambda a, b: min(_signed(a), _signed(b)),
    "setp.gt.s32": lambda a, b: _signed(a) > _signed(b),
    "setp.eq.u32": lambda a, b: a == b,
    "setp.ne.u32": lambda a, b: a != b,
    "setp.gt.and.s32": lambda a, b, c: _signed(a) > _signed(b) and c,
    "setp.ne.and.u32": lambda a, b, c: a != b and c,
    "mov.b32": lambda a: a,
    "mov.u32": lambda a: a,
    "selp.b32": lambda a, b, c: a if c else b,
    "shl.b32": lambda a, b: (a << b) % 2**32 if b < 32 else 0,
    "shf.r.clamp.b32": lambda a, b, c: (b % 2**32 << 32 | a % 2**32) >> min(c, 32) & 0xFFFFFFFF,
}


@pytest.mark.parametrize("across", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("tail", [False, True])
def test_vectors_are_cut_at_any_address(across, tail):
    """Of lines inside and beyond the matrix, whole ones and ones that end; others are not read."""
    rng = random.Random(across + tail)
    memory = rng.randbytes(1 << 13)
    text = _ptx._cut_text(across, tail)
    for _ in range(150):
        lanes, wanted, readable = [], [], set()
        for _ in range(32 // across):
            start, size = 2 * rng.randrange(8, 3000), 16 * across
            left = 2 * rng.randrange(1, size // 2 + 9) if tail else size + 2 * rng.randrange(20)
            if rng.random() < 0.2:
                left = -2 * size  # no line of the matrix
            readable |= {at // 16 for at in range(start, start + left)}
            for i in range(across):
                inside = max(0, min(16, left - 16 * i))
                piece = memory[start + 16 * i :][:inside].ljust(16, b"\0")
                wanted.append(list(struct.unpack("<4I", piece)))
                lanes.append({"$4": start + 16 * i, "$8": left - 16 * i})
        warp = Warp(memory, lanes)
        warp.run(text)
        assert [[lane[f"${i}"] for i in range(4)] for lane in lanes] == wanted
        assert {address // 16 for address in warp.reads} <= readable
