"""Each rung compiles to what its header claims, in the registers and shared memory there are.

Nothing here needs a GPU. Code is compiled in a worker process for each architecture (see
`tritemm.compile.asm`), one batch of jobs for each test. A full cross of types, configs and layouts
takes the better part of an hour: by default each value of one meets some of the others, see
`sweep`.
"""

import dataclasses
import itertools
import math

import pytest

from cuda_reference import source
from tests.sweep import EVERY, drawn, pairwise
from tritemm.compile import asm, sass
from tritemm.rungs import RUNGS
from tritemm.spec import Config

pytestmark = pytest.mark.host

SIGNED = [pytest.param(k, sm, id=f"{k.name}-sm_{sm}") for k in RUNGS for sm in k.signs]
LADDER = [pytest.param(k, id=k.name) for k in RUNGS]
TYPES = [
    {"dtype": "fp16", "accumulate": "fp16"},
    {"dtype": "bf16", "out_dtype": "fp32"},
    *({"dtype": "fp32", "precision": p} for p in asm.PRECISIONS if not p.startswith("int8")),
    {"dtype": "fp64"},
    {"dtype": "int8"},
]
#: Elements of K, of 16 bits, that one WGMMA multiplies.
WGMMA_K = 16
#: M, N, K: whole tiles; and none, but lines of a multiple of 16 elements, as Triton wants them.
EVEN, RAGGED = (4096, 4096, 4096), (1008, 784, 352)


def per_config(job: asm.Job) -> list[asm.Job]:
    """The job with each config that its rung offers; none if the rung refuses.

    Of those that differ only in how many parts of K there are, 2 or more, one will do.
    """
    distinct = {}
    for index, config in enumerate(asm.configs_of(job)):
        distinct.setdefault(dataclasses.replace(config, SPLIT_K=min(config.SPLIT_K, 2)), index)
    return [dataclasses.replace(job, config=index) for index in distinct.values()]


def faults(result, required=(), forbidden=(), several=True) -> list[str]:
    """What is wrong with one result, a phrase each; signs are looked for if there are any.

    `several`: whether a k-step has more than one WGMMA.
    """
    if isinstance(result, asm.Refusal):
        return [f"refused by the {result.by}: {result.reason}"]
    found = [f"no {name}" for name in required if not result.count(name)]
    found += [f"{result.count(name)} {name}" for name in forbidden if result.count(name)]
    if result.spills or (result.mix and result.local):
        local = f" in {result.local} instructions" if result.mix else ""
        found.append(f"spills {result.spills} bytes per thread{local}")
    if not result.fits:
        found.append(f"{result.shared} bytes of shared memory, of {result.limit}")
    if result.mix and (products := sum(map(result.count, ("HGMMA", "QGMMA", "IGMMA")))):
        # ptxas gives each WGMMA of a k-step its own fence when it can't prove the accumulator
        # idle. It costs a third of the speed, and only an info message of ptxas (C7515) tells.
        fences = result.count("WARPGROUP.ARRIVE")
        if several and fences >= products:
            found.append(f"{fences} fences for {products} WGMMA")
    return found


def expect_no_faults(jobs, detail, required=(), forbidden=()):
    """Compile the jobs, and fail with a line for each that has a fault."""
    assert jobs
    report = []
    for job, result in zip(jobs, asm.compile_many(jobs, detail, apart=True), strict=True):
        several = isinstance(result, asm.Refusal) or config_of(job).BLOCK_K > WGMMA_K
        for fault in faults(result, required, forbidden, several):
            report.append(f"{describe(job)}: {fault}")
    assert not report, "\n" + "\n".join(report)


def config_of(job: asm.Job) -> Config:
    return job.config if isinstance(job.config, Config) else asm.configs_of(job)[job.config]


def describe(job: asm.Job) -> str:
    return f"{job.rung} on sm_{job.sm}: {asm.problem_of(job)}; {config_of(job)}"


def test_signs_are_mnemonics_that_the_tool_knows():
    """A forbidden sign with a typing error would never be found, and the test would pass."""
    signs = {kernel.name: kernel.signs for kernel in RUNGS}
    assert all(required for each in signs.values() for required, _ in each.values())
    for name, each in (signs | {name: source.signs(name) for name in source.names()}).items():
        for required, forbidden in each.values():
            assert required or forbidden, name
            assert {sign.split(".")[0] for sign in (*required, *forbidden)} <= set(sass.GROUP_OF)


def signed_jobs(kernel, sm) -> list[asm.Job]:
    """16-bit problems, or those of the rung's own type: every config and layout, with types and
    raggedness that take turns.

    The first is that of the demo, which finds it in the cache. On sm_80, where rungs are simple,
    two of the layouts.
    """
    others, first = ["NN", "TN", "TT"], kernel.number % 3
    layouts = ["NT", *others[first:], *others[:first]]
    dtypes, sizes = ("bf16", "fp16"), (EVEN, RAGGED)
    if kernel.limits.dtype:
        dtypes = (asm.own_type(kernel),) * 2
    count = max(4 if sm == 90 else 2, len(per_config(asm.Job(kernel.name, sm))))
    turns = [(dtypes[i % 2], sizes[i // 2 % 2], layouts[i % 4], i) for i in range(count)]
    if EVERY:
        turns = [(*row, None) for row in itertools.product(dtypes, sizes, asm.LAYOUTS)]
    jobs = []
    for dtype, size, layout, turn in turns:
        configs = per_config(asm.Job(kernel.name, sm, *size, layout, dtype))
        jobs += configs if turn is None else [configs[turn % len(configs)]]
    return jobs


@pytest.mark.latest
@pytest.mark.parametrize(("kernel", "sm"), SIGNED)
def test_signs(kernel, sm):
    """Signs hold for 16-bit operands and the default accumulator."""
    expect_no_faults(signed_jobs(kernel, sm)[:1], "mix", *kernel.signs[sm])


@pytest.mark.wide
@pytest.mark.parametrize(("kernel", "sm"), SIGNED)
def test_signs_of_every_config(kernel, sm):
    expect_no_faults(signed_jobs(kernel, sm)[1:], "mix", *kernel.signs[sm])


def type_rows():
    """(rung, types, sm, layout): each type on each rung, on one of the rung's architectures."""
    on_both, on_one = [], []
    for kernel in RUNGS:
        (on_both if 80 in kernel.signs else on_one).append(kernel)
    yield from pairwise(on_both, TYPES, [90, 80], asm.LAYOUTS)
    yield from pairwise(on_one, TYPES, [90], asm.LAYOUTS)


@pytest.mark.wide
@pytest.mark.parametrize("kernel", LADDER)
def test_every_type_compiles(kernel):
    jobs = []
    for rung, types, sm, layout in type_rows():
        if rung is kernel:
            configs = per_config(asm.Job(kernel.name, sm, layout=layout, **types))
            first = TYPES.index(types) % max(len(configs), 1)
            jobs += configs if EVERY else configs[first : first + 1]
    if not jobs:
        refused(kernel, 90, **TYPES[0])
    expect_no_faults(jobs, "usage")


def grouped_jobs() -> list[asm.Job]:
    """Groups of rows, of columns and of K, in every config of the rungs that multiply them.

    Of K, groups of some lengths have tiles of their own; those of 256 rows are left out: with
    Triton 3.8 their producer puts two words aside.
    """
    jobs = []
    forms = {
        "m": (("NN", 4096), ("NT", 4096)),
        "n": (("NT", 4096), ("TT", 4096)),
        "k": [("TN", 128 * K) for K in (8, 32, 1024)],
    }
    for kernel, form in itertools.product(RUNGS, forms):
        for layout, K in forms[form] if form in kernel.limits.groups else ():
            job = asm.Job(kernel.name, K=K, layout=layout, batch=(128,), groups=form)
            rows = [config.BLOCK_M for config in asm.configs_of(job)]
            each = per_config(job)
            jobs += [one for one in each if form != "k" or rows[one.config] < 256]
    return list(dict.fromkeys(jobs))


@pytest.mark.latest
def test_code_of_groups():
    expect_no_faults(drawn(grouped_jobs(), 10), "mix", ("HGMMA",))


@pytest.mark.wide
@pytest.mark.parametrize("kernel", [k for k in LADDER if k.values[0].limits.symmetric])
@pytest.mark.parametrize("N", [1024, 1001], ids=["TMA", "threads"])
def test_mirrored_stores_stay_in_registers(kernel, N):
    """The tile with the fewest elements, and the one with the most."""
    jobs = per_config(asm.Job(kernel.name, 90, N, N, 4096, "NT", symmetric=True))
    jobs.sort(key=lambda job: math.prod(asm.configs_of(job)[job.config].numbers[:2]))
    expect_no_faults(jobs if EVERY else [jobs[0], jobs[-1]], "usage")


@pytest.mark.parametrize(
    ("rung", "K", "precision", "layout"),
    [
        ("tiled", 4096, "tf32x3", "TT"),
        ("swizzled", 4096, "bf16x6", "NN"),
        ("pipelined", 4096, "bf16x6", "NT"),
        ("pipelined", 4100, "tf32", "NT"),
        ("pipelined", 4100, "tf32x3", "TT"),
    ],
)
def test_fp32_before_hopper_stays_in_registers(rung, K, precision, layout):
    """In each of these, larger tiles or more warps spill with the ptxas of Triton 3.8."""
    job = asm.Job(rung, 80, K=K, layout=layout, dtype="fp32", precision=precision, config=0)
    expect_no_faults([job], "usage")


@pytest.mark.wide
@pytest.mark.latest
@pytest.mark.parametrize("kernel", LADDER)
def test_compiles_on_blackwell(kernel):
    jobs = per_config(asm.Job(kernel.name, 100))
    expect_no_faults(jobs if EVERY else jobs[:1] or refused(kernel, 100), "usage")


@pytest.mark.wide
@pytest.mark.parametrize("kernel", LADDER)
def test_odd_sizes_of_batches_that_broadcast_at_two_levels_compile(kernel):
    """No size divides by a tile or by 16 bytes; rungs that want 16 bytes get a K that has them."""
    batches = {"batch": (3, 5), "a_batch": (3, 1), "b_batch": (1, 5)}
    for K in (401, 344):
        jobs = per_config(asm.Job(kernel.name, 90, 333, 777, K, "NT", **batches))
        if jobs:
            return expect_no_faults(jobs[:1], "usage")
    return refused(kernel, 90)


def refused(kernel, sm, **types):
    """Skip the test with the sentence of the rung that refuses."""
    reason = kernel.why_not(asm.problem_of(asm.Job(kernel.name, sm, **types)))
    pytest.skip(f"{kernel.name} refuses: {reason}")


def test_narrow_tiles_of_an_output_by_columns():
    """What few rows come to, where the operands change places and no row is whole 16 bytes."""
    tiles = ((8, 128, 8), (8, 256, 5), (16, 256, 5), (32, 128, 6))
    rungs = ("warp_specialized", "split_k", "stream_k")
    jobs = [
        asm.Job(name, M=52, N=510, K=871, layout=layout, config=config)
        for name, (columns, depth, stages), layout in pairwise(rungs, tiles, ("NN", "NT"))
        for config in [Config(64, columns, depth, 4, stages, ORDER="grouped", SWAP=True, PACK="ab")]
    ]
    expect_no_faults(jobs, "mix")


# The checks above can fail: each of these has the fault that it is checked for.


#: The first rung that multiplies large tiles, by its own signs, through pointers.
TENSOR_CORE = next(k for k in RUNGS if "HGMMA" in k.signs[90][0] and 80 in k.signs)


def test_a_missing_and_a_forbidden_sign_are_faults():
    code = asm.compile_many([asm.Job(TENSOR_CORE.name)], "mix", apart=True)[0]
    required, forbidden = TENSOR_CORE.signs[90]
    assert faults(code, required, forbidden) == []
    assert faults(code, (*required, "UTMALDG"), forbidden) == ["no UTMALDG"]
    assert faults(code, (), ("HGMMA",)) == [f"{code.count('HGMMA')} HGMMA"]
    # Signs of one architecture don't hold on another: HMMA on sm_80 is HGMMA on sm_90.
    assert "no HMMA" in faults(code, *TENSOR_CORE.signs[80])


def test_a_fence_for_every_wgmma_is_a_fault():
    code = asm.compile_many([asm.Job(TENSOR_CORE.name)], "mix", apart=True)[0]
    products = code.count("HGMMA")
    serial = dataclasses.replace(code, variants={**code.variants, "WARPGROUP.ARRIVE": products})
    assert faults(serial) == [f"{products} fences for {products} WGMMA"]


def test_spills_and_too_much_shared_memory_are_faults():
    job = asm.Job(TENSOR_CORE.name, config=Config(256, 128, 16, num_warps=4))
    mix, usage = (asm.compile_many([job], d, apart=True)[0] for d in ("mix", "usage"))
    assert mix.local > 0
    assert mix.spills == usage.spills > 0
    assert faults(usage) == [f"spills {usage.spills} bytes per thread"]
    huge = dataclasses.replace(usage, spills=0, shared=usage.limit + 1)
    assert faults(huge) == [f"{usage.limit + 1} bytes of shared memory, of {usage.limit}"]


def test_a_refusal_and_a_compiler_error_are_faults():
    config = Config(100, 128, 64)  # tiles are powers of two
    broken = asm.compile_many([asm.Job(TENSOR_CORE.name, config=config)], apart=True)[0]
    assert isinstance(broken, asm.Refusal)
    assert broken.by == "compiler"
    assert faults(broken)[0].startswith("refused by the compiler: ")
