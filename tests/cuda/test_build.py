"""Every .cu compiles without a warning to what its header claims, and to nothing that spills.

Nothing here needs a GPU; nvcc is needed. Machine code is cached by a hash of the sources, so a
second run compiles nothing. TRITEMM_SWEEP=all compiles the tables of WGMMA for every N.
"""

import json
import re

import pytest

from cuda_reference import cubin, loader, source, toolkit
from cuda_reference.__main__ import main
from cuda_reference.rungs import RUNGS
from tests.sweep import EVERY

pytestmark = [pytest.mark.host, pytest.mark.once, pytest.mark.usefixtures("nvcc")]

SOURCES = [
    pytest.param(name, arch, id=f"{name}-sm_{arch}")
    for name in source.largest_first(source.names())
    for arch in source.architectures(name)
]
every_source = pytest.mark.parametrize(("name", "arch"), SOURCES)
LADDER = {kernel.name for kernel in RUNGS}


def faults(code: cubin.Cubin) -> list[str]:
    """What is wrong with the code, a phrase each.

    The signs hold for each function of a rung, and for a table of types as a whole.
    """
    required, forbidden = source.signs(code.name)[int(code.arch.removesuffix("a"))]
    functions = code.functions
    found = [f"nvcc says: {code.warnings}"] if code.warnings else []
    for sign in required:
        without = [f.name for f in functions if not f.count(sign)]
        if without and (code.name in LADDER or len(without) == len(functions)):
            found.append(f"no {sign} in {', '.join(without)}")
    for function in functions:
        found += [
            f"{n} {sign} in {function.name}" for sign in forbidden if (n := function.count(sign))
        ]
        local = function.count("LDL") + function.count("STL")
        if function.stack or local:
            found.append(
                f"{function.name} has {function.stack} bytes of stack, and {local} instructions "
                "read or write local memory"
            )
    return found


def flags_of(name) -> tuple[str, ...]:
    """Flags that leave a few N of WGMMA, whose tables differ in N alone, unless all is swept."""
    included = source.files_of(source.path_of(name))
    few = not EVERY and any(file.name == "one_wgmma.cuh" for file in included)
    return cubin.FEW_N if few else cubin.FLAGS


@pytest.mark.wide
@every_source
def test_machine_code(name, arch):
    """Without faults; kernels carry their rung's name, which profiles show."""
    code = cubin.compile_cubin(name, arch, flags_of(name))
    assert code.functions
    assert faults(code) == []
    named = {function.name.split("<")[0] for function in code.functions}
    assert name not in LADDER or named == {f"{name}_kernel"}


# The checks above can fail: each of these has the fault that it is checked for.

WARNED = "__global__ void bad_kernel(float* x) { int unused; x[0] = 1; }"
STORES = "__global__ void bad_kernel(float* x) { x[0] = 1; }"
STACK = """__global__ void bad_kernel(float* x, int i) {
    float local[64];
    for (int k = 0; k < 64; ++k) local[k] = x[k];
    local[i] = 2;
    for (int k = 0; k < 64; ++k) x[k] = local[k * i % 64];
}"""


@pytest.fixture
def compile_text(tmp_path, monkeypatch):
    """Compiles a text as if it were the file of a rung called bad."""
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    LADDER.add("bad")

    def compile_(text, signs="sm_80: STG"):
        (tmp_path / "bad.cu").write_text(f"/* bad: has a fault.\n\nSigns  {signs}\n*/\n{text}\n")
        return cubin.compile_cubin("bad", 80)

    yield compile_
    LADDER.remove("bad")


@pytest.mark.parametrize(
    ("text", "signs", "found"),
    [
        (WARNED, "STG", ['nvcc says: .*"unused"']),
        (STORES, "HMMA, STG, no STG", ["no HMMA in bad_kernel$", "1 STG in bad_kernel$"]),
        (STACK, "STG", ["bad_kernel has 256 bytes of stack, and "]),
    ],
    ids=("warning", "signs", "stack"),
)
def test_each_fault_is_told(compile_text, text, signs, found):
    for fault, sentence in zip(faults(compile_text(text, f"sm_80: {signs}")), found, strict=True):
        assert re.match(sentence, fault, re.DOTALL)


def test_what_does_not_compile_is_an_error_with_nvccs_message(compile_text):
    with pytest.raises(RuntimeError, match=r'^bad does not compile for sm_80: .*"y" is undefined'):
        compile_text("__global__ void bad_kernel(float* x) { y[0] = 1; }")


def test_machine_code_is_cached(compile_text, monkeypatch):
    first, asked, tool = compile_text(WARNED), [], cubin.run_tool
    functions, ptx = first.functions, cubin.compile_ptx("bad", 80)
    monkeypatch.setattr(cubin, "_compile", None)
    monkeypatch.setattr(cubin, "run_tool", lambda *words: asked.append(words[1]) or tool(*words))
    again = compile_text(WARNED)
    assert (again, again.functions, cubin.compile_ptx("bad", 80)) == (first, functions, ptx)
    assert asked == ["-res-usage"] and ".target sm_80" in ptx


def test_an_architecture_that_is_not_known_or_not_signed_is_refused(compile_text):
    with pytest.raises(ValueError, match="architecture '100' is unknown; one of 80, 90a"):
        cubin.compile_cubin("bad", "100")
    compile_text(STORES)
    with pytest.raises(ValueError, match="bad is for sm_80, as its signs say, not for sm_90a"):
        cubin.compile_cubin("bad", "sm_90")


# The commands that compile


@pytest.mark.parametrize("kernel", [RUNGS[0], RUNGS[-1]], ids=lambda kernel: kernel.name)
def test_asm_command(kernel, capsys):
    assert main(["asm", kernel.name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{kernel.name} on sm_90a\n")
    assert f"\n{kernel.name}_kernel<" in out
    for line in ("all", "registers", "stack               0", "local memory        0"):
        assert f"\n{line} " in out
    assert max(map(len, out.splitlines())) <= 100


def test_asm_command_in_json_and_of_one_function(capsys):
    words = ["--sm", "80", "--function", "float", "--json", "--sass"]
    assert main(["asm", RUNGS[0].name, *words]) == 0
    code = json.loads(capsys.readouterr().out)
    assert "ptx" not in code
    assert (code["name"], code["arch"], code["warnings"]) == (RUNGS[0].name, "80", "")
    assert code["functions"] and all("float" in f["name"] for f in code["functions"])
    assert {"registers", "stack", "shared", "mix", "variants"} <= set(code["functions"][0])
    assert "EXIT" in code["sass"]


@pytest.mark.parametrize(("sm", "target"), [("80", "sm_80"), ("90a", "sm_90a")])
def test_asm_command_with_ptx(sm, target, capsys):
    assert main(["asm", "mma_naive", "--sm", sm, "--ptx"]) == 0
    out = capsys.readouterr().out
    assert f"\n.target {target}\n" in out and "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in out
    assert main(["asm", "mma_naive", "--sm", sm, "--ptx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ptx"].strip() in out


def test_build_command_without_a_gpu_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(loader, "unavailable", lambda: "torch finds no CUDA device")
    assert main(["build", RUNGS[0].name, RUNGS[-1].name]) == 0
    said = capsys.readouterr()
    assert "torch finds no CUDA device; compiling to cubins for sm_80 and sm_90a" in said.err
    assert said.out == f"cubins for sm_80 and sm_90a are in {toolkit.cache_folder()}\n"


def test_build_command_shows_every_error(compile_text, monkeypatch, capsys):
    compile_text(STORES)
    text = (source.ROOT / "bad.cu").read_text()
    for name in ("worse", "worst"):
        (source.ROOT / f"{name}.cu").write_text(text.replace("x[0]", name))
    assert main(["build", "--sm", "80"]) == 1
    err = capsys.readouterr().err
    for name in ("worse", "worst"):
        assert f"{name} for sm_80 failed" in err and f'"{name}" is undefined' in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["asm", "nothing"], "no CUDA source is called 'nothing'; there are "),
        (["asm", RUNGS[-1].name, "--sm", "80"], "is for sm_90a, as its signs say, not for sm_80"),
        (["asm", RUNGS[0].name, "--sm", "70"], "architecture '70' is unknown; one of 80, 90a"),
        (["asm", RUNGS[0].name, "--function", "x y"], "has 'x y' in its name: "),
        (["build", "nothing"], "no CUDA source is called 'nothing'; there are "),
    ],
)
def test_what_cannot_be_asked_for(command, message, capsys):
    assert main(command) == 2
    assert message in capsys.readouterr().err
