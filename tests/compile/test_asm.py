"""The tool that reads binaries is itself tested: on planted text, and on what it must refuse."""

import argparse
import json
import os
import subprocess
import sys

import pytest
import torch

from tritemm.compile import asm, pool
from tritemm.compile.sass import count_instructions, parse_usage
from tritemm.rungs import RUNGS

pytestmark = [pytest.mark.latest, pytest.mark.host]

#: Lines as nvdisasm (first part) and cuobjdump (second part) print them, with decoys.
SASS = """
	.headerflags	@"EF_CUDA_SM90"
.text.some_kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @P0  LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/             @!P6  LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0030*/             @!PT  LDS RZ, [RZ] ;
        /*0040*/             @UP1  UTMALDG.2D [UR8], [UR4], desc[UR6] ;
        /*0050*/            @!UP1  UTMALDG.4D [UR8], [UR4], desc[UR6] ;
        /*0060*/            @!UPT  UIADD3 URZ, URZ, URZ, URZ ;
        /*0070*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, !UPT ;
        /*0080*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0090*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
.L_x_7:
        /*00a0*/                   LDGDEPBAR ;
        /*00b0*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR6][R2.64] ;
        /*10c0*/                   BRA `(.L_x_7) ;
        /*10d0*/                   EXIT ;
                                                          /* 0x000fe200078e00ff */
        /*00e0*/                   STL.64 [R1+0x8], R4 ;  /* 0x0000080401007387 */
        /*00f0*/         @P1       LDL.LU R4, [R1] ;      /* LDL in a comment */
        // STL in a comment
        /*10100*/                  IMAD.MOV.U32 R1, RZ, RZ, R2 ;
"""


def code(sass: str = SASS, **values) -> asm.Code:
    mix, variants = count_instructions(sass)
    fields = {
        "rung": "planted", "arch": 90, "problem": "p", "config": "c", "registers": 32,
        "spills": 0, "shared": 1024, "warps": 4, "mix": mix, "variants": variants,
    }  # fmt: skip
    return asm.Code(**fields | values)


def test_instructions_are_counted_whatever_their_predicate_and_suffixes():
    mix, variants = count_instructions(SASS)
    assert mix == {
        "LDC": 1, "LDG": 2, "LDS": 1, "UTMALDG": 2, "UIADD3": 1, "HGMMA": 2, "WARPGROUP": 1,
        "LDGDEPBAR": 1, "LDGSTS": 1, "BRA": 1, "EXIT": 1, "STL": 1, "LDL": 1, "IMAD": 1,
    }  # fmt: skip
    assert variants == {
        "LDG.E.128": 1, "LDG.E.128.CONSTANT": 1, "LDS": 1, "UTMALDG.2D": 1, "UTMALDG.4D": 1,
        "HGMMA.64x256x16.F32.BF16": 2, "WARPGROUP.DEPBAR.LE": 1, "LDGDEPBAR": 1,
        "LDGSTS.E.BYPASS.128": 1, "STL.64": 1, "LDL.LU": 1,
    }  # fmt: skip


def test_a_count_is_of_whole_words():
    planted = code()
    assert planted.count("LDG") == 2  # not LDGSTS, not LDGDEPBAR
    assert planted.count("MMA") == planted.count("HMMA") == planted.count("TMALDG") == 0
    assert planted.count("HGMMA.64x256x16") == 2
    assert planted.count("HGMMA.64x256x1") == planted.count("HGMMA.64x128x16") == 0
    assert planted.local == 2


def test_code_without_its_instruction_mix_has_no_counts():
    with pytest.raises(ValueError, match="without its instruction mix"):
        code(mix={}, variants={}).count("HGMMA")


def test_resource_usage():
    text = """
 Function helper:
  REG:24 STACK:40 SHARED:0 LOCAL:0 CONSTANT[0]:616 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function some_kernel:
  REG:178 STACK:8 SHARED:1024 LOCAL:0 CONSTANT[0]:616 TEXTURE:0 SURFACE:0 SAMPLER:0"""
    assert parse_usage(text) == (178, 40)
    with pytest.raises(RuntimeError, match="no registers"):
        parse_usage("nothing")


def test_shared_memory_is_held_against_the_limit():
    assert code(shared=232448).fits
    assert not code(shared=232449).fits
    assert not code(arch=80, shared=166913).fits
    assert "MORE THAN the 166912 that sm_80 has" in asm.render(code(arch=80, shared=166913))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rung": "nope"}, "rung 'nope' is unknown; one of " + RUNGS[0].name),
        ({"sm": 75}, "sm_75 is older than sm_80, which tritemm needs; one of sm_80"),
        ({"layout": "NX"}, "layout 'NX' is unknown"),
        ({"dtype": "fp12"}, "type of the operands 'fp12' is unknown"),
        ({"dtype": "int32"}, "type of the operands 'int32' is unknown"),
        ({"precision": "fast"}, "precision='fast' is unknown"),
        ({"accumulate": "fp16"}, "not possible for torch.bfloat16 operands"),
        ({"out_dtype": "fp64"}, "not possible for torch.bfloat16 operands"),
        ({"K": 0}, "at least 1 each"),
        ({"M": 10**20}, "more bytes than can be counted in 64 bits"),
        ({"M": 1 << 31, "N": 1 << 31}, "more bytes than can be counted in 64 bits"),
        ({"dtype": "int8", "activation": "relu"}, "not possible for int8 operands"),
    ],
)
def test_a_job_that_means_nothing_is_a_value_error(values, message):
    with pytest.raises(ValueError, match=message):
        asm.Job(**{"rung": RUNGS[0].name} | values)


def test_a_config_that_the_rung_lacks_is_a_value_error():
    with pytest.raises(ValueError, match="there is no 99"):
        asm.compile_problem(asm.Job(RUNGS[0].name, config=99))


def test_operands_have_the_layouts_and_batches_of_the_job():
    job = asm.Job(RUNGS[0].name, M=3, N=5, K=7, layout="NT", batch=(2, 4), a_batch=(2, 1))
    problem = asm.problem_of(job)
    assert (problem.layout, problem.batches) == ("NT", (2, 4))
    assert problem.a.strides == (21, 0, 7, 1)
    assert problem.b.strides == (140, 35, 1, 7)
    assert problem.c.strides == (60, 15, 5, 1)


def test_a_crash_of_the_compiler_costs_one_job(monkeypatch):
    """A worker that ends is reported for the job that ended it, and the next job has a new one."""
    job = asm.Job(RUNGS[0].name, M=32, N=32, K=32)
    assert isinstance(asm.compile_many([job], "usage", apart=True)[0], asm.Code)
    pool.shared()._lanes[0].worker.process.kill()
    crashed, fine = asm.compile_many([job, job], "usage", apart=True)
    assert isinstance(crashed, asm.Refusal)
    assert crashed.by == "compiler"
    assert "status -9" in crashed.reason
    assert isinstance(fine, asm.Code)


def test_instructions_are_counted_alike_alone_and_together():
    """In one run of nvdisasm for many binaries, each has its own; a refusal has none."""
    small = {"M": 32, "N": 32, "K": 32}
    jobs = [asm.Job(rung.name, sm, **small) for rung in RUNGS[:3] for sm in (90, 80)]
    refused = next(k for k in RUNGS if k.why_not(asm.problem_of(asm.Job(k.name, 80, **small))))
    jobs.insert(1, asm.Job(refused.name, 80, **small))
    together = asm.compile_many(jobs, "mix", apart=True)
    assert isinstance(together.pop(1), asm.Refusal)
    del jobs[1]
    alone = asm.compile_many(jobs, "text", apart=True)
    assert [(c.mix, c.variants) for c in together] == [(c.mix, c.variants) for c in alone]
    assert all(c.mix["EXIT"] for c in together) and not any(c.sass for c in together)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_fp_fusion_is_asked_for(rung):
    job = asm.Job(rung.name)
    problem, config = asm.problem_of(job), asm.configs_of(job)[0]
    launch = rung.prepare(problem, config, *pool.operands(config.view(problem)))
    assert launch.options["enable_fp_fusion"] is True


def test_compiling_leaves_the_process_as_it_was():
    """In a process that compiles: the driver is restored, no real device's cache is touched.

    Products and sums are fused there though Triton would not do it by default, as from 3.10 on.
    """
    check = f"""
import triton
from tritemm.compile import asm
before = object()
triton.runtime.driver.set_active(before)
code = asm.compile_problem(asm.Job({RUNGS[0].name!r}, sm=80, M=32, N=32, K=32))
assert isinstance(code, asm.Code), code
assert code.ptx and code.sass and code.local == 0, code
assert code.count("FFMA") and not code.count("FMUL") and not code.count("FADD"), code.mix
assert triton.runtime.driver.active is before
assert list(asm.RUNGS[0].fn.device_caches) == [1080]
"""
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "0"}
    subprocess.run([sys.executable, "-c", check], check=True, env=env)


def run_command(*words) -> int:
    parser = argparse.ArgumentParser()
    asm.add_arguments(parser)
    return asm.main(parser.parse_args(words))


def test_the_command_prints_a_table_or_json(capsys):
    words = (RUNGS[0].name, "--sm", "80", "--problem", "64,32,16,TN", "--dtype", "float32")
    assert run_command(*words) == 0
    table = capsys.readouterr().out
    assert "64 x 32 x 16 TN, fp32 x fp32 -> fp32" in table
    assert "local memory        0  none" in table
    assert run_command(*words, "--json", "--ptx") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["arch"] == 80
    assert ".target sm_80" in values["ptx"]
    assert "sass" not in values


@pytest.mark.parametrize(
    "words",
    [
        ("nope",),
        (RUNGS[0].name, "--problem", "1,2"),
        (RUNGS[0].name, "--sm", "old"),
        (RUNGS[0].name, "--activation", "tanh"),
        (RUNGS[0].name, "--bias"),
    ],
)
def test_a_bad_command_is_one_sentence(words, capsys):
    assert run_command(*words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_compiles_an_epilogue(capsys):
    rung = next(kernel.name for kernel in RUNGS if kernel.policy.branch)
    words = (rung, "--problem", "8,16,32", "--activation", "relu", "--bias", "--residual")
    assert run_command(*words) == 0
    assert "8 x 16 x 32 NT, bf16 x bf16 -> bf16; bias, relu, residual" in capsys.readouterr().out


def test_the_command_passes_on_a_refusal(capsys):
    refusing = [k for k in RUNGS if k.why_not(asm.problem_of(asm.Job(k.name, sm=80)))]
    if not refusing:
        pytest.skip("every rung runs on sm_80")
    assert run_command(refusing[0].name, "--sm", "80") == 2
    problem = asm.problem_of(asm.Job(refusing[0].name, sm=80))
    assert refusing[0].why_not(problem) in capsys.readouterr().err


def test_dtypes_are_known_by_both_names():
    assert asm.Job(RUNGS[0].name, dtype="bfloat16").types[0] == torch.bfloat16
    assert asm.Job(RUNGS[0].name, dtype="torch.float16", accumulate="fp16").types[1] == torch.half
