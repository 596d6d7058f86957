"""How the programs that share K agree on who adds up what, in turns that are drawn."""

import contextlib
import random
import subprocess
import sys
import types

import pytest

from tests.dispatch.choosing import problem
from tritemm.arch.roles import piece_columns
from tritemm.arch.tiles import Split
from tritemm.compile import asm
from tritemm.kernels.device import split_k
from tritemm.spec import Config

pytestmark = pytest.mark.host


class Paused(Exception):
    """A program has done one operation."""


class Memory:
    """A word, on which programs do one operation each time that it is their turn.

    Whoever has its turn runs from its beginning again, and is told what its operations gave.
    """

    word = 0

    def atomic_add(self, word, value, sem, scope):
        return self.operation(lambda before: before + value)

    def atomic_or(self, word, value, sem, scope):
        return self.operation(lambda before: before | value)

    def store(self, word, value):
        self.operation(lambda before: value)

    def operation(self, change):
        if self.known:
            return self.known.pop(0)
        if self.turn_is_over:
            raise Paused
        self.turn_is_over = True
        before, self.word = self.word, change(self.word)
        self.given.append(before)
        return before

    def run(self, arrive, parts, owners, rng):
        """What each of the parts returns, in turns that `rng` draws."""
        running, mine = {part: [] for part in range(parts)}, [0] * parts
        while running:
            part = rng.choice(sorted(running))
            self.given = running[part]
            self.known, self.turn_is_over = list(self.given), False
            with contextlib.suppress(Paused):
                mine[part] = arrive("word", part, parts, owners)
                del running[part]
        return mine


#: Constants of the layout of the word.
FIELDS = ("ARRIVED_MASK", "OWNERS_SHIFT", "OWNERS_MASK", "TAKEN_SHIFT")


def arriving(memory: Memory, patience: int):
    """The kernel's function on that memory."""
    language = types.SimpleNamespace(
        atomic_add=memory.atomic_add, atomic_or=memory.atomic_or, store=memory.store,
        where=lambda condition, yes, no: yes if condition else no, minimum=min, to_tensor=int,
    )  # fmt: skip
    found = split_k.arrive_owner.fn
    names = {
        "gl": language, "barrier": lambda: None, "PATIENCE": patience,
        "_bits": lambda mask: mask.bit_count(),
        **{name: getattr(split_k, name).value for name in FIELDS},
    }  # fmt: skip
    return types.FunctionType(found.__code__, found.__globals__ | names)


@pytest.mark.parametrize(("parts", "owners"), [(2, 2), (3, 2), (4, 4), (6, 3), (128, 8)])
@pytest.mark.parametrize("patience", [0, 1, 5, 1000])
def test_each_share_is_taken_once_whoever_comes_and_leaves(parts, owners, patience):
    rng = random.Random(parts * patience)
    takers = set()
    for _ in range(40):
        memory = Memory()
        found = memory.run(arriving(memory, patience), parts, owners, rng)
        assert memory.word == 0
        taken = [i for mine in found for i in range(owners) if mine >> i & 1]
        assert sorted(taken) == list(range(owners))
        assert not any(mine >> owners for mine in found)
        takers.add(sum(bool(mine) for mine in found))
    # With patience each takes its own; without, those that are not the last leave.
    assert max(takers) == owners if patience == 1000 else min(takers) < owners


def test_parts_wait_only_where_all_find_room():
    config = Config(64, 64, 64, num_stages=8, SPLIT_K=8)
    assert Split(problem(128, 512, 8192), config).together
    assert not Split(problem(128, 1024, 8192), config).together
    assert not Split(problem(128, 512, 8192), Config(64, 64, 64, SPLIT_K=1)).together


@pytest.mark.parametrize(
    ("columns", "programs", "piece"),
    [(256, 2, 64), (256, 3, 32), (192, 2, 32), (192, 8, 32), (64, 8, 8), (64, 33, 8), (8, 4, 8)],
)
def test_the_program_that_has_most_columns_has_few(columns, programs, piece):
    assert piece_columns(columns, programs) == piece


def test_many_parts_are_compiled_soon():
    """Their loads are not all unrolled, for every piece."""
    config = Config(128, 128, 64, num_warps=8, num_stages=5, ORDER="grouped", SPLIT_K=128)
    job = asm.Job("split_k", layout="NT", M=128, N=128, K=2**20, config=config)
    code = asm.compile_problem(job)
    assert not code.spills and code.count("LDG") <= 256


IMPATIENT = """
import itertools
import torch
from triton.experimental.gluon import language as gl
from tritemm.kernels.device import split_k
split_k.PATIENCE = gl.constexpr(0)
import tritemm
a = torch.randint(-2, 3, (256, 8192), device="cuda").bfloat16()
b = torch.randint(-2, 3, (8192, 512), device="cuda").bfloat16()
want = (a.float() @ b.float()).bfloat16()
for kernel, split in itertools.product(("split_k", "multicast_split_k"), (2, 3, 8)):
    config = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 5,
              "SPLIT_K": split, "CLUSTER": 1 if kernel == "split_k" else 2}
    for _ in range(200):
        got = tritemm.matmul(a, b, kernel=kernel, config=config)
    assert torch.equal(got, want), (kernel, split)
"""


@pytest.mark.gpu
def test_sums_are_right_where_nobody_waits():
    """Owners leave their shares to the last that comes, launch after launch."""
    run = subprocess.run([sys.executable, "-c", IMPATIENT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
