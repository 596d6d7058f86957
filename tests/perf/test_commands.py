"""Every command of `python -m perf`: what it refuses and how it says so, and that it runs."""

import subprocess
import sys

import pytest
import torch

from perf import __main__, problems, rows
from perf.calls import OURS
from perf.machine import ROOT
from perf.rows import REFERENCE
from tests.perf.fakes import on_cpu

HEAD = "id,class,name,batch,M,N,K,dtype,out_dtype,layout,ending"
SUITE = f"{HEAD}\nA,decode,small,1,32,24,40,fp16,fp16,NT,\nB,one,x,1,32,32,64,bf16,bf16,NT,\n"
MEASURING = (
    "suite", "serving", "random", "moe", "experts", "ladder", "roofline", "host", "joules",
    "model", "sweep", "search", "regret", "conform", "errors",
)  # fmt: skip


@pytest.mark.host
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("command", MEASURING)
def test_without_a_gpu_the_command_says_so(command, capsys):
    assert __main__.main([command]) == 2
    told = capsys.readouterr()
    expected = f"python -m perf {command} needs a CUDA device, and torch sees none"
    assert (told.out, told.err.splitlines()[0]) == ("", expected)


#: What is typed, and what the refusal names: the option, and what there is instead.
REFUSED = [
    ("suite --file mine.csv --class three", "no class is called 'three'; there are decode, one"),
    ("suite --file mine.csv --id A,Z", "no id is called 'Z'; there are A, B"),
    ("suite --file none.csv", "none.csv"),
    (f"suite --file {problems.LINEAR}", "products with an ending are for"),
    ("suite --batch-invariant --kernel tma", "leave --kernel out"),
    ("suite --batch-invariant --peers lt", "leave --peers out"),
    ("suite --rounds 0", "argument --rounds: a count is 1 or more, not '0'"),
    ("ladder --only nope", "nope"),
    ("ladder --size 8x9", "a size is"),
    ("ladder --sizes x", "a size is"),
    ("ladder --dtype bf16 --accumulate fp16", "bf16 is accumulated in fp32, not fp16"),
    ("ladder --dtype bf16 --precision tf32", "--precision says how fp32 is multiplied"),
    ("sweep --only tma,nope", "nope"),
    ("sweep --class N", "no class is called 'N'; there are squares, K, M"),
    ("table --results none.jsonl", "none.jsonl"),
    ("plot --results none.jsonl", "none.jsonl"),
    ("table --size 7", "no recorded row matches"),
    ("table --gpu K80", "no row is of a GPU called 'K80'; there are NVIDIA H100 80GB"),
    ("suite --file missing.csv", "missing.csv: No such file or directory"),
    ("serving --model llama", "no model is called 'llama'; there are llama-3-8b, llama-3-70b-tp8"),
    ("serving --model mixtral-8x7b --layer o", "no layer is called 'o'; there are router\n"),
    ("serving --rows 1,2 --model mixtral-8x7b --part 3/3", "only 2 problems"),
    ("serving --rows 0", "a count is 1 or more, not '0'"),
    ("serving --part 5/4", "a part is 1/4"),
    ("serving --part a/b", "a part is 1/4"),
    ("search --out found.jsonl.gz", "--out: lines are added to a plain file"),
    ("moe --model llama", "one of mixtral-8x7b, qwen3-30b-a3b, qwen3-235b-a22b"),
    ("moe --product back", "one of forward, data, weight, not 'back'"),
    ("moe --peers lt", "one of quack, not 'lt'"),
    ("moe --limit 0", "argument --limit: a count is 1 or more, not '0'"),
    ("moe --limit 2 --part 3/3", "only 2 problems"),
    ("experts --work back", "one of forward, train, not 'back'"),
    ("model --modes jit", "one of eager, compiled, graph, not 'jit'"),
    ("errors --dtype bf16", "one of fp32, fp64, not 'bf16'"),
    ("errors --data random", "one of uniform, normal, rows, columns, along-k, phi1, phi2, phi4"),
    ("errors --size 8x9", "a size is"),
    ("errors --dtype fp64 --data subnormal", "no operands of this kind are of this type"),
    ("profile tilde", "no rung is called 'tilde'; there are simt"),
    ("profile tilde", "wgmma_fp8, auto, cublas\n"),
    ("profile cublas --dtype bf16 --accumulate fp16", "bf16 is accumulated in fp32"),
    ("profile cublas --precision tf32", "--precision says how fp32 is multiplied"),
]


@pytest.mark.host
@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_begin_is_refused_with_a_sentence(
    words, message, monkeypatch, tmp_path, capsys
):
    (tmp_path / "mine.csv").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    on_cpu(monkeypatch)
    try:
        status = __main__.main(words.split())
    except SystemExit as error:
        status = error.code
    told = capsys.readouterr()
    assert status == 2 and message in told.err and told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


ENDINGS = (
    "bias", "bias relu", "bias gelu", "silu", "gelu_tanh", "residual", "bias silu residual",
    "swiglu", "geglu",
)  # fmt: skip
LINES = [
    f"{M}-{i},one,x,1,{M},512,256,bf16,bf16,NT,{ending}"
    for M in (16, 256)
    for i, ending in enumerate(ENDINGS)
]
LAYERS = "\n".join([HEAD, *LINES, "W,two,x,1,512,256,1024,bf16,fp32,TN,accumulate\n"])
ON_A_GPU = {
    "ladder": "ladder --sizes 1024 --only dgemm --dtype fp64",
    "suite": "suite --file suite.csv --mode sustained",
    "suite, burst": "suite --file suite.csv --mode burst",
    "linear": "race --cases layers.csv --compiled compile --mode sustained",
    "linear, burst": "race --cases layers.csv --compiled compile --mode burst",
    "random": "random --n 4",
    "moe": "moe --model qwen3-30b-a3b --layer down --tokens 32",
    "regret": "regret --n 4",
    "joules": "joules --cases suite.csv --id A",
}
MODES = {"joules": {"settled", "in bursts"}}
#: Two of them at a time, by two workers: all of them take some minutes.
IN_TURN = [
    pytest.param(name, marks=pytest.mark.xdist_group(f"perf {place % 2}"))
    for place, name in enumerate(ON_A_GPU)
]


@pytest.mark.gpu
@pytest.mark.parametrize("name", IN_TURN)
def test_the_command_runs_on_a_gpu(tmp_path, name):
    words, path = ON_A_GPU[name].split(), tmp_path / "x.jsonl"
    files = {"suite.csv": f"{SUITE}D,two,x,1,64,64,128,int8,int32,NT,\n", "layers.csv": LAYERS}
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    words = [str(tmp_path / word) if word in files else word for word in words]
    words = [sys.executable, "-m", "perf", *words, "--quick", "--out", str(path)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = rows.read(path)
    timed = [row for row in found if row.competitor != REFERENCE and row.us]
    assert timed and all(row.ratio and row.null for row in timed), run.stdout
    assert {row.outcome for row in found} == {"measured"} and len({row.run for row in found}) == 1
    modes = MODES.get(name, {"burst" if "burst" in name else "sustained"})
    assert {row.mode for row in found} == modes
    if "linear" in name:
        assert all(row.versus["compile"] for row in timed if row.competitor == OURS)


@pytest.mark.gpu
@pytest.mark.xdist_group("perf 0")
def test_a_card_is_searched(tmp_path):
    """Compiled ahead, checked and timed; nothing that the dispatcher could choose is wrong."""
    path, shapes = tmp_path / "found.jsonl", tmp_path / "mine.csv"
    shapes.write_text("M,N,K,layout\n512,768,1024,NT\n3,200,300,TN\n")
    words = ["search", "--file", str(shapes), "--out", str(path)]
    words = [sys.executable, "-m", "perf", *words]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "WRONG" not in run.stderr, run.stdout + run.stderr
    assert "[2/2] 3 x 200 x 300 TN" in run.stdout and len(path.read_text()) > 1000
