"""The CUDA rungs: registry, headers, refusals, loader and tool anywhere; correctness on a GPU."""

import ctypes
import json
import re

import pytest
import torch

import cuda_reference
from cuda_reference import loader, source
from cuda_reference.__main__ import main
from cuda_reference.kernel import (
    ACCUMULATORS,
    FARTHEST,
    ORDERS,
    TYPES,
    Call,
    CudaKernel,
    Groups,
    Readable,
)
from cuda_reference.rungs import RUNGS
from tests.dispatch.choosing import A100, H200
from tests.harness import DEVICE, Guarded, assert_right, operand, run
from tests.kernels.test_kernels import shapes
from tools import sanitize
from tritemm import budget, plan
from tritemm.problem import INTERPRETER, Problem, short_name

pytestmark = pytest.mark.host

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32

#: Those of 16-bit operands; `test_fp8.py` is of the other one.
DENSE = [kernel for kernel in RUNGS if not kernel.readable.scaled]
every_rung = pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.name)
rungs = pytest.mark.parametrize("kernel", DENSE, ids=lambda kernel: kernel.name)
every_layout = pytest.mark.parametrize(
    ("kernel", "layout"),
    [pytest.param(k, b, id=f"{k.name}-{b}") for k in DENSE for b in k.readable.layouts],
)
every_config = pytest.mark.parametrize(
    ("kernel", "config", "accumulate"),
    [
        pytest.param(k, config, accumulate, id=f"{k.name}-{config.ORDER}-{short_name(accumulate)}")
        for k in DENSE
        for config in k.configs(None)
        for accumulate in k.readable.accumulators
    ],
)


def tile_of(kernel):
    return kernel.configs(None)[0]


# The registry


def test_every_file_is_on_the_ladder():
    assert [kernel.name for kernel in RUNGS] == list(dict.fromkeys(kernel.name for kernel in RUNGS))
    assert {kernel.name for kernel in RUNGS} == {n for n in source.names() if "/" not in n}
    assert [kernel.number for kernel in RUNGS] == list(range(1, len(RUNGS) + 1))


@pytest.mark.parametrize("name", source.names())
def test_header(name):
    """A rung's says all; that of a file of types/ is shorter."""
    lines = source.opening_comment(source.path_of(name)).splitlines()
    assert len(lines) <= (10 if "/" in name else 11)  # and one that closes the comment
    assert lines[0].startswith(name.removeprefix("types/") + ": ") and lines[0].endswith(".")
    needed = {"Signs", "Needs"} if "/" in name else {*source.HEADER_KEYS} - {"Note"}
    assert needed <= set(source.header(name)) <= set(source.HEADER_KEYS)


@every_rung
def test_rungs_without_signs_of_sm_80_are_hoppers(kernel):
    assert kernel.readable.hopper == (80 not in kernel.signs)


@every_rung
def test_tiles_are_those_of_the_source(kernel):
    """A config states the facts of its .cu; none but the order of the tiles is passed to it."""
    stages = re.findall(r"\bSTAGES = (\d+)", kernel.file.read_text())
    assert {str(config.num_stages) for config in kernel.configs(None)} >= set(stages)
    assert {config.ORDER for config in kernel.configs(None)} <= set(ORDERS)


@pytest.mark.parametrize("name", source.names())
def test_every_source_says_what_it_is_compiled_for(name):
    assert set(source.architectures(name)) <= {"80", "90a"}
    assert "90a" in source.architectures(name)


def fields_of(text, struct):
    """(name, type) of a struct's fields, as ctypes has them; what is no integer is a pointer."""
    text = re.sub(r"//.*", "", text)
    body = re.search(rf"struct {struct} \{{(.*?)\}};", text, re.DOTALL).group(1)
    integers = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32}
    for line in filter(None, map(str.strip, body.split(";"))):
        type_, names = re.fullmatch(r"((?:const )?\w+\*?) (.*)", line).groups()
        for name in names.split(","):
            yield name.strip(), integers.get(type_, ctypes.c_void_p)


def test_call_is_laid_out_as_abi_cuh_says():
    text = (source.INCLUDE / "abi.cuh").read_text()
    assert list(fields_of(text, "Call")) == Call._fields_
    text_of_groups = (source.INCLUDE / "groups.cuh").read_text()
    (_, first), *others = Groups._fields_
    assert list(fields_of(text_of_groups, "Groups"))[1:] == others and first is Call
    for name, values in (("Type", TYPES), ("Order", ORDERS)):
        enum = re.search(rf"enum {name} : int32_t \{{(.*?)\}}", text).group(1)
        written = dict(word.split(" = ") for word in enum.strip().split(", "))
        known = {short_name(k) if name == "Type" else k: v for k, v in values.items()}
        assert {k.upper(): str(v) for k, v in known.items()} == written
    assert f"fp32 = {ACCUMULATORS[FP32]}, fp16 = {ACCUMULATORS[FP16]}" in text


# Refusals


def meta(rows, cols, dtype=FP16, layout="N", pitch=None):
    """[rows, cols] without data, stored by rows (N) or by columns (T) that are `pitch` apart."""
    if layout == "T":
        return meta(cols, rows, dtype, "N", pitch).mT
    return torch.empty(rows, pitch or cols, dtype=dtype, device="meta")[:, :cols]


def problem_of(a=None, b=None, c=None, device=H200, **options):
    a = meta(64, 32) if a is None else a
    b = meta(32, 48, a.dtype, "T") if b is None else b
    c = meta(64, 48, a.dtype) if c is None else c
    return Problem.of(a, b, c, device=device, **options)


BATCH = {
    name: torch.empty(3, rows, cols, dtype=FP16, device="meta")
    for name, rows, cols in (("a", 64, 32), ("b", 32, 48), ("c", 64, 48))
}
#: What is refused by all, by those that want 16-byte rows, by those that need Hopper.
REFUSED = {
    "the tensors are on the CPU": ("", {"device": INTERPRETER}),
    "a is fp32; this kernel multiplies fp16": ("", {"a": meta(64, 32, FP32)}),
    "c is fp32; this kernel writes the type of a, fp16": ("", {"c": meta(64, 48, FP32)}),
    "the accumulator is fp64; for fp16 this kernel has fp32": ("", {"accumulate": torch.float64}),
    "the elements of a row of a are 64 elements apart; .* a = a.contiguous()": (
        "", {"a": meta(64, 32, layout="T")},
    ),
    "the elements of a row of c are 64 elements apart; .* c = c.contiguous()": (
        "", {"c": meta(64, 48, layout="T")},
    ),
    "row stride of a is 70 bytes; .* a multiple of 16": ("aligned", {"a": meta(64, 32, pitch=35)}),
    "column stride of b is 70 bytes; .* a multiple of 16": (
        "aligned", {"b": meta(32, 48, layout="T", pitch=35)},
    ),
    "K is 2147483648; .* split K": (
        "hopper", {"a": meta(1, 2**31), "b": meta(2**31, 1, layout="T"), "c": meta(1, 1)},
    ),
    "3 matrices; this kernel multiplies one, so call it for each$": ("", BATCH),
    "WGMMA needs compute capability 9.0; .*A100.* has 8.0": ("hopper", {"device": A100}),
}  # fmt: skip


@rungs
@pytest.mark.parametrize("sentence", REFUSED)
def test_refusals(kernel, sentence):
    who, options = REFUSED[sentence]
    reason = kernel.why_not(problem_of(**options))
    if who == "" or getattr(kernel.readable, who):
        assert reason and re.match(sentence, reason)
    else:
        assert reason is None


@rungs
def test_groups_are_refused_by_all_but_those_that_have_them(kernel):
    asked = problem_of(b=torch.empty(3, 48, 32, dtype=FP16, device="meta").mT, groups="m")
    odd = torch.empty(300, dtype=FP16, device="meta").as_strided((3, 32, 48), (9, 1, 32))
    reasons = kernel.why_not(asked), kernel.why_not(problem_of(b=odd, groups="m"))
    if kernel.limits.groups:
        assert reasons[0] is None
        assert reasons[1].startswith("the groups of b are 18 bytes apart; ")
    else:
        assert reasons == ("M is cut into groups, but this rung's batches all have one size",) * 2


@rungs
def test_rows_too_far_apart(kernel):
    """Refused by the tiled classic rungs alone, and only if there are two rows."""
    far = FARTHEST
    text = (source.INCLUDE / "tile.cuh").read_text()
    assert f"farthest = int64_t{{1}} << {far.bit_length() - 1};" in text
    reason = kernel.why_not(problem_of(a=meta(64, 32, pitch=far)))
    if kernel.readable.aligned and not kernel.readable.hopper:
        assert reason and f"the rows of a are {far} elements apart" in reason
    else:
        assert reason is None
    assert kernel.why_not(problem_of(a=meta(1, 32, pitch=far), c=meta(1, 48))) is None


@rungs
def test_what_is_not_refused(kernel):
    assert kernel.why_not(problem_of()) is None
    assert kernel.why_not(problem_of(c=meta(64, 48, pitch=51))) is None
    bf16 = kernel.why_not(problem_of(a=meta(64, 32, BF16)))
    assert (bf16 is None) == (BF16 in kernel.readable.types)
    assert bf16 is None or bf16.startswith("a is bf16; ")
    by_rows = kernel.why_not(problem_of(b=meta(32, 48)))
    assert (by_rows is None) == ("NN" in kernel.readable.layouts)
    assert by_rows is None or by_rows.endswith("b = b.mT.contiguous().mT")


def test_an_accumulator_that_a_type_does_not_have():
    limits = Readable(types=(FP16, BF16))
    reason = limits(problem_of(a=meta(64, 32, BF16), accumulate=FP16))
    assert reason == "the accumulator is fp16; for bf16 this kernel has fp32"
    assert limits(problem_of(accumulate=FP16)) is None


def test_the_layout_is_one_that_can_be_read():
    both = Readable(layouts=("NT", "NN"))
    assert both.layout(problem_of()) == "NT"
    assert both.layout(problem_of(b=meta(32, 48))) == "NN"


# A launch


def cpu_problem(M, N, K, **options):
    """Operands on the CPU, and their problem as if they were on a GPU."""
    a, b = torch.zeros(M, K + 8, dtype=FP16)[:, :K], torch.zeros(N, K + 16, dtype=FP16)[:, :K].mT
    c = torch.zeros(M, N + 3, dtype=FP16)[:, :N]
    return Problem.of(a, b, c, device=H200, **options), a, b, c


def test_what_a_launch_passes(library):
    problem, a, b, c = cpu_problem(64, 40, 32, accumulate=FP16)
    kernel = next(k for k in RUNGS if len(k.configs(None)) > 1)
    kernel.launch(problem, kernel.configs(problem)[0], a, b, c)
    passed = {name: getattr(library.calls[0], name) for name, _ in Call._fields_}
    assert passed == {
        "a": a.data_ptr(), "b": b.data_ptr(), "c": c.data_ptr(), "M": 64, "N": 40, "K": 32,
        "lda": 40, "ldb": 48, "ldc": 43, "type": 0, "accumulate": 1, "b_rows_are": 0,
        "order": ORDERS[kernel.configs(problem)[0].ORDER], "group": 16, "sms": 132, "stream": 7,
    }  # fmt: skip


def test_b_by_rows_is_passed_as_such(library):
    kernel = next(k for k in RUNGS if "NN" in k.readable.layouts)
    _, a, _, c = cpu_problem(64, 40, 32)
    b = torch.zeros(32, 56, dtype=FP16)[:, :40]
    kernel.launch(Problem.of(a, b, c, device=H200), tile_of(kernel), a, b, c)
    (call,) = library.calls
    assert (call.b_rows_are, call.ldb) == (1, 56)


def test_groups_are_passed_as_such(library, monkeypatch):
    """A dense product is one group of all rows, to a rung that has groups."""
    passed = []
    monkeypatch.setattr(library, "launch", lambda pointer: passed.append(pointer._obj))
    kernel = next(k for k in RUNGS if k.limits.groups)
    problem, a, b, c = cpu_problem(64, 40, 32)
    kernel.launch(problem, tile_of(kernel), a, b, c)
    b = torch.zeros(3, 48, 32, dtype=FP16)[:, :40].mT
    offs = torch.tensor([3, 4, 64], dtype=torch.int32)
    problem = Problem.of(a, b, c, device=H200, groups="m")
    kernel.launch(problem, tile_of(kernel), a, b, c, offs)
    found = [(each.offs, each.b_group, each.count, each.call.ldb) for each in passed]
    assert found == [(None, 0, 1, 48), (offs.data_ptr(), 48 * 32, 3, 32)]


def test_an_error_is_an_exception_with_the_kernels_name(library):
    library.answer = b"cudaErrorInvalidValue: invalid argument (cudaGetLastError())"
    problem, a, b, c = cpu_problem(64, 40, 32)
    for kernel in (DENSE[0], DENSE[-1]):
        with pytest.raises(RuntimeError, match=f"^{kernel.name}: cudaErrorInvalidValue: invalid"):
            kernel.launch(problem, tile_of(kernel), a, b, c)


# The tool


def test_list_command(capsys, monkeypatch):
    """As lines and in JSON: the ladder, then the other sources."""
    monkeypatch.setattr(loader, "unavailable", lambda: "ninja was not found")
    assert main(["list"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    ladder = cuda_reference.ladder()
    for kernel, line, printed in zip(ladder, str(ladder).splitlines(), lines, strict=False):
        assert line.split()[:2] == printed.split()[:2] == [f"{kernel.number:02}", kernel.name]
        assert line.endswith(f" {kernel.title}")
    others = {name for name in source.names() if "/" in name}
    assert {line.split()[0] for line in lines[len(RUNGS) :]} == others and ladder == RUNGS
    assert said.err == "\nThey don't run here: ninja was not found.\n"
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows[: len(RUNGS)]] == [kernel.name for kernel in RUNGS]
    assert {row["name"] for row in rows} == set(source.names())
    assert all({"number", "title", "Signs", "Needs"} <= set(row) for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nothing"], "no rung is called 'nothing'; there are "),
        ([RUNGS[0].name, "--dtype", "int8"], "type 'int8' is unknown; one of fp16, bf16"),
        ([RUNGS[0].name, "--size", "64,64"], "--size is M,N,K, not '64,64'"),
        ([RUNGS[0].name, "--size", "64,0,64"], "M, N and K are 64, 0 and 64; at least 1 each"),
    ],
)
def test_what_run_cannot_be_asked_for(options, message, capsys):
    assert main(["run", *options]) == 2
    assert message in capsys.readouterr().err


def test_run_without_a_gpu_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["run", RUNGS[0].name]) == 2
    assert "CUDA" in capsys.readouterr().err


def test_what_a_sanitizer_finds_is_told_apart_by_kernel(tmp_path, capsys):
    """A stand-in for compute-sanitizer: it finds something in one kernel of three."""
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text(
        '#!/bin/sh\nwhile [ "$1" != --inside ]; do shift; done; shift\n'
        'for name; do if [ $name = bad ]; then echo "= Invalid read"; exit 9; fi\n'
        'echo "ran $name"; done\n'
    )
    stand_in.chmod(0o755)
    assert sanitize.sanitize(str(stand_in), "memcheck", ["one", "two"], limit=60)
    assert not sanitize.sanitize(str(stand_in), "memcheck", ["one", "bad", "two"], limit=60)
    said = capsys.readouterr().out
    assert re.findall(r"memcheck +(\w+) +clean", said) == ["one", "two", "one", "two"]
    assert re.findall(r"memcheck +(\w+) +FOUND\n +(.*)\n", said) == [("bad", "= Invalid read")]


@pytest.mark.gpu
@every_layout
def test_run_command(kernel, layout, capsys):
    assert main(["run", kernel.name, "--size", "300,264,200", "--layout", layout]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{kernel.name}: {kernel.title}\n300 x 264 x 200 {layout}, fp16")
    assert "ok: the worst error is" in out and "TFLOP/s" in out


# On a GPU


def operands(M, N, K, dtype=FP16, layout="NT", **options):
    """A and B stored by `layout`, with NaN between lines that are multiples of 16 bytes."""
    options = {"aligned": True} | options
    return operand(M, K, dtype, layout[0], **options), operand(K, N, dtype, layout[1], **options)


def multiplied(kernel, a, b, **options):
    """A B by the rung's own tile, in memory that was NaN."""
    c = torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=a.dtype, device=DEVICE)
    plan.run(kernel, Problem.of(a, b, c, **options), tile_of(kernel), a, b, c)
    return c


@pytest.mark.gpu
@every_layout
@pytest.mark.parametrize("shape", shapes(tile_of(RUNGS[0])))
def test_shapes(kernel, layout, shape):
    M, N, K = shapes(tile_of(kernel))[shape]
    a, b = operands(M, N, K, layout=layout)
    if 0 in (M, N, K):
        guarded = Guarded.like((M, N), FP16)
        problem = Problem.of(a, b, guarded.tensor)
        plan.run(kernel, problem, tile_of(kernel), a, b, guarded.tensor)
        assert torch.equal(guarded.tensor, torch.zeros_like(guarded.tensor))
        guarded.assert_untouched_outside()
    else:
        assert run(kernel, a, b) is None


@pytest.mark.gpu
@every_layout
@pytest.mark.parametrize("K", [1, 7, 15, 17, 31, 33, 65, 97, 129])
def test_a_tail_of_k_is_zeros_and_not_the_next_row(kernel, layout, K):
    """NaN stands between the rows. Some K are shorter than the ring of stages, some just longer."""
    assert run(kernel, *operands(73, 41, K, layout=layout), pitch_gap=1) is None


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("accumulate", [FP32, FP16], ids=short_name)
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=short_name)
def test_types(kernel, dtype, accumulate):
    limits = kernel.readable
    can = dtype in limits.types and accumulate in limits.accumulators
    can = can and (accumulate == FP32 or dtype == FP16)
    reason = run(kernel, *operands(300, 270, 200, dtype), accumulate=accumulate)
    assert (reason is None) == can, reason


@pytest.mark.gpu
@every_config
@pytest.mark.parametrize("size", [(600, 2200, 104), (2300, 300, 72)], ids=str)
def test_configs(kernel, config, accumulate, size):
    """Two stripes of the serpentine order and two groups of the grouped one, the last ragged."""
    assert run(kernel, *operands(*size), accumulate=accumulate, config=config) is None


@pytest.mark.gpu
@every_layout
@pytest.mark.parametrize("columns", [1, 65, 72])
@pytest.mark.parametrize("gap", [0, 1, 8])
def test_stores_stay_inside_a_row(kernel, layout, columns, gap):
    """Any pitch of C, odd ones too; what follows in it belongs to someone else."""
    assert run(kernel, *operands(70, columns, 48, layout=layout), pitch_gap=gap) is None


@pytest.mark.gpu
@every_layout
@pytest.mark.parametrize("offset", [1, 8])
def test_storage_offset(kernel, layout, offset):
    reason = run(kernel, *operands(45, 61, 48, layout=layout, offset=offset))
    refused = offset == 1 and kernel.readable.aligned
    assert ("16-byte boundary" in reason) if refused else reason is None


@pytest.mark.gpu
@every_layout
def test_rows_that_are_no_multiple_of_16_bytes(kernel, layout):
    reason = run(kernel, *operands(45, 61, 50, layout=layout, aligned=False))
    assert ("multiple of 16" in reason) if kernel.readable.aligned else reason is None


@pytest.mark.gpu
@rungs
def test_the_accumulator_is_the_one_asked_for(kernel):
    """The first 16 terms sum to 2048, the next ones to 1 each: fp16 cannot hold 2049."""
    K, steps = 16 * 65, 64
    row = torch.zeros(K, dtype=FP16, device=DEVICE)
    row[:16], row[16::16] = 128, 1
    a, b = row.expand(40, K).contiguous(), torch.ones(24, K, dtype=FP16, device=DEVICE).mT
    for accumulate, expected in ((FP32, 2048 + steps), (FP16, 2048)):
        if accumulate in kernel.readable.accumulators:
            c = multiplied(kernel, a, b, accumulate=accumulate)
            assert torch.equal(c, torch.full_like(c, expected))


@pytest.mark.gpu
@rungs
def test_infinities_and_nan_pass_through(kernel):
    a, b = operands(300, 140, 72)
    a[3, 5], b[7, 9], a[299, 71] = torch.inf, torch.nan, -torch.inf
    c = multiplied(kernel, a, b)
    want = budget.reference(a, b).half()
    special = ~want.isfinite()
    assert torch.equal(c.isnan(), want.isnan())
    assert torch.equal(c[special].nan_to_num(), want[special].nan_to_num())


@pytest.mark.gpu
@rungs
def test_same_bits_every_time(kernel):
    """A race shows in some runs."""
    a, b = operands(700, 648, 520)
    first, *others = (multiplied(kernel, a, b) for _ in range(30))
    assert all(torch.equal(first, c) for c in others)
    assert_right(first, a, b)


@pytest.mark.gpu
@rungs
def test_stream_and_graph(kernel):
    """Launches wait for their own stream; a graph replays them on new data."""
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        a, b = operands(300, 264, 200)
        c = multiplied(kernel, a, b)
    torch.cuda.synchronize()
    assert_right(c, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(kernel, Problem.of(a, b, c), tile_of(kernel), a, b, c)
    a.copy_(torch.randn_like(a))
    c.fill_(torch.nan)
    graph.replay()
    assert_right(c, a, b)


@pytest.mark.gpu
@pytest.mark.large(5)
@rungs
def test_rows_far_apart(kernel):
    """A, B and C have a pitch of 2**23 elements: the last rows begin past 2**31."""
    pitch, rows, K = 2**23, 270, 40
    assert rows * pitch > 2**31
    storage = torch.empty(rows, pitch, dtype=FP16, device=DEVICE)
    a, b, c = storage[:, :K], storage[:260, 1024 : 1024 + K].mT, storage[:, 2048 : 2048 + 260]
    for view in (a, b):
        view.normal_()
    c.fill_(torch.nan)
    plan.run(kernel, Problem.of(a, b, c), tile_of(kernel), a, b, c)
    assert_right(c, a, b)


@pytest.mark.gpu
@rungs
def test_real_sizes(kernel):
    """Many tiles and many k-steps."""
    assert run(kernel, *operands(2000, 3000, 1000)) is None


@pytest.mark.gpu
def test_a_failing_cuda_call_is_an_exception(tmp_path, monkeypatch):
    """A launch with too many threads, and the next call is not hurt."""
    file = tmp_path / "broken.cu"
    file.write_text(
        "/* broken: asks for 2000 threads.\n\n   Signs  sm_80: EXIT; sm_90: EXIT\n*/\n"
        '#include "abi.cuh"\n'
        "__global__ void broken_kernel() {}\n"
        "EXPORT launch(const Call* call) {\n"
        "    broken_kernel<<<1, 2000, 0, call->stream>>>();\n"
        "    TRY(cudaGetLastError());\n"
        "    return nullptr;\n"
        "}\n"
    )
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    doc = source.opening_comment(file)
    broken = CudaKernel(file=file, place=1, doc=doc, limits=RUNGS[0].limits)
    with pytest.raises(RuntimeError, match=r"^broken: cudaErrorInvalid(Configuration|Value): "):
        multiplied(broken, *operands(32, 32, 32))
    torch.cuda.synchronize()
