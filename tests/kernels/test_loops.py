"""What Triton makes of the loops of device code."""

import json

import pytest

from tests.compile.test_pool import uninterpreted
from tests.sweep import drawn
from tritemm.rungs import RUNGS

pytestmark = pytest.mark.host

#: In a process that does not interpret: compiles problems as far as Triton's own code, and lists
#: the names that a loop assigns and Triton takes for constant in it.
LOOPS = """
import ast, collections, json, sys
from triton.compiler import ASTSource
from triton.compiler.code_generator import CodeGenerator, _is_triton_value
from triton.experimental.gluon._runtime import GluonASTSource
from tritemm.compile import asm

constant, loops, rung = set(), collections.Counter(), None

def find_carries(self, node, liveins, *args, found=CodeGenerator._find_carries, **options):
    carried = found(self, node, liveins, *args, **options)
    inside = [part for statement in node.body for part in ast.walk(statement)]
    targets = {id(loop.target) for loop in inside if isinstance(loop, ast.For)}
    names = [n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    assigned = {n.id for n in names if id(n) not in targets}
    loops[rung] += 1
    lives = {name for name in assigned & set(liveins) if _is_triton_value(liveins[name])}
    constant.update((rung, self.function_name, name) for name in lives - set(carried[0]))
    return carried

class Enough(Exception):
    pass

def as_far_as(make):
    def make_ir(*args):
        make(*args)
        raise Enough
    return make_ir

CodeGenerator._find_carries = find_carries
for source in ASTSource, GluonASTSource:
    source.make_ir = as_far_as(source.make_ir)
for words in json.loads(sys.argv[1]):
    for rung in sys.argv[2:]:
        job = asm.Job(rung, **words)
        if job.kernel.why_not(asm.problem_of(job)) is None:
            made = asm.compile_problem(job, "mix")
            assert made.reason.startswith("Enough"), made
print(json.dumps([sorted(constant), loops]))
"""
JOBS = [
    {"layout": "NT"},
    {"layout": "TN", "bias": True, "activation": "gelu", "batch": (3,), "N": 1000},
    {"layout": "TT", "dtype": "fp32"},
    {"layout": "TT", "dtype": "fp32", "precision": "tf32"},
    {"layout": "NN", "M": 3},
    {"layout": "NT", "symmetric": True},
    {"layout": "NT", "dtype": "fp8_e4m3fn", "scales": "block,block2d"},
]


def test_every_name_that_a_loop_assigns_is_carried(tmp_path, monkeypatch):
    """Where `y = x` stands before a loop and in it, Triton's `y` stays, though `x` changes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    rungs = [kernel.name for kernel in drawn(RUNGS, 5)]
    constant, loops = json.loads(uninterpreted(LOOPS, json.dumps(JOBS), *rungs))
    assert set(loops) == set(rungs) and min(loops.values()) > 0
    assert not constant
