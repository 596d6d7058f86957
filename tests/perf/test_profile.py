"""`python -m perf profile`: what ncu prints, and how it is called, without a GPU."""

import contextlib
import dataclasses
import functools
import json
import stat
import sys

import pytest
import torch

import tritemm
from perf import cli, operands
from perf.case import Case
from perf.experiments import profile
from perf.rows import CUDA
from tests.perf.fakes import fake, spoil_one
from tests.perf.fakes import parsed as parsed_by
from tritemm.problem import INTERPRETED
from tritemm.rungs import RUNGS

pytestmark = [pytest.mark.host, pytest.mark.once]

ACTIVE = "avg.pct_of_peak_sustained_active"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.{}"
COLUMNS = {
    "gpu__time_duration.sum": ("ns", "223,456", "12,000.5"),
    "dram__bytes_read.sum": ("byte", "67,108,864", "1,000,000"),
    "dram__bytes_write.sum": ("byte", "33,554,432", "2,500,000"),
    "lts__t_bytes.sum": ("byte", "2,147,483,648", "n/a"),
    "lts__t_sector_hit_rate.pct": ("%", "81.25", "50"),
    f"sm__pipe_tensor_cycles_active.{ACTIVE}": ("%", "71.9", "(!) nan"),
    "launch__registers_per_thread": ("register/thread", "168", "32"),
    "launch__shared_mem_per_block": ("byte/block", "197,632", "0"),
    STALL.format("long_scoreboard", "ratio"): ("inst", "9.25", "1"),
    STALL.format("long_scoreboard", "pct"): ("%", "925", "100"),
    STALL.format("barrier", "ratio"): ("inst", "2.5", "0"),
    STALL.format("gmma", "ratio"): ("inst", "11.5", "0"),
    STALL.format("selected", "ratio"): ("inst", "1", "1"),
    STALL.format("wait", "ratio"): ("inst", "1.5", "0"),
    STALL.format("from_2030", "ratio"): ("inst", "3", "0"),
    STALL.format("sleeping", "ratio"): ("inst", "0.25", "0"),
    STALL.format("wait_not_issued", "ratio"): ("inst", "99", "0"),
}
KERNELS = ("void gemm<256, 128>(Call)", "reduce_kernel")
CASE = Case(4096, 4096, 4096, "NT")


def quoted(*cells):
    return ",".join(f'"{cell}"' for cell in cells)


def printed(kernels=2):
    """What ncu prints of one or both of `KERNELS`."""
    fixed = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
             "Block Size", "Grid Size", "Device", "CC")  # fmt: skip
    lines = [
        "==PROF== Connected to process 4711 (python3)",
        f'==PROF== Profiling "{KERNELS[0]}" - 0: 0%....50%....100% - 11 passes',
        "==PROF== Disconnected from process 4711",
        quoted(*fixed, *COLUMNS),
        quoted(*[""] * len(fixed), *(column[0] for column in COLUMNS.values())),
    ]
    for i, name in enumerate(KERNELS[:kernels]):
        where = (i, 4711, "python3", "127.0.0.1", name, 1, 7, "(384, 1, 1)", "(132, 1, 1)", 0, 9.0)
        lines.append(quoted(*where, *(column[1 + i] for column in COLUMNS.values())))
    return "\n".join([*lines, ""])


def test_numbers_units_stalls_and_sums_of_each_kernel():
    first, second = profile.parse(printed())
    assert (first.kernel, first.grid, first.block) == (KERNELS[0], "(132, 1, 1)", "(384, 1, 1)")
    read, written = first.values["dram__bytes_read.sum"], first.values["dram__bytes_write.sum"]
    assert first.values["gpu__time_duration.sum"] == pytest.approx(223.456e-6)
    assert (read, written) == (67108864, pytest.approx(33554432))
    assert first.values["launch__shared_mem_per_block"] == pytest.approx(197632)
    assert second.values["gpu__time_duration.sum"] == pytest.approx(12.0005e-6)
    unknown = {"lts__t_bytes.sum", f"sm__pipe_tensor_cycles_active.{ACTIVE}", "ID", "CC", "Stream"}
    assert not unknown & set(second.values)
    words = [word for word, _ in first.stalls()]
    assert words == ["gmma", "long_scoreboard", "from_2030", "barrier", "wait", "sleeping"]
    assert second.stalls() == [("long_scoreboard", 1)]
    sums = profile.total([first, second])  # of what both have counted
    moved = ("dram__bytes_read.sum", "dram__bytes_write.sum")
    assert sums.keys() == {"gpu__time_duration.sum", *moved}
    assert sums["dram__bytes_read.sum"] == 68108864
    for text in ("", "==PROF== Connected\n", '"a","b"\n"1","2"\n'):
        assert profile.parse(text) == []


def lines_of(text):
    """The last words of each line by the ones before."""
    pairs = [line.strip().rsplit("  ", 1) for line in text.splitlines() if "  " in line.strip()]
    return {label.strip(): value.strip() for label, value in pairs}


def test_the_table_in_plain_words():
    text = profile.text(profile.parse(printed(1)), CASE)
    wanted = {
        "duration": "223.5 us", "DRAM read": "67.1 MB", "L2 traffic": "2,147.5 MB",
        "L2 hit rate": "81.2 %", "tensor pipe busy": "71.9 %", "registers per thread": "168",
        "shared-memory bank conflicts": "not counted", "shared memory per block": "197,632 bytes",
        "data from L2 or DRAM (long_scoreboard)": "9.25", "from_2030": "3.00",
        "DRAM traffic over the least, A, B and C once": "1.00",
    }  # fmt: skip
    assert wanted.items() <= lines_of(text).items()
    assert "sleeping" not in text and "1 kernel in all" in text  # the sixth
    one, two, both = profile.text(profile.parse(printed()), CASE).split("\n\n")
    assert one.startswith(KERNELS[0]) and two.startswith(KERNELS[1])
    assert lines_of(two)["L2 traffic"] == lines_of(both)["L2 traffic"] == "not counted"
    assert both.startswith("2 kernels in all") and lines_of(both)["DRAM read"] == "68.1 MB"


def test_a_chip_without_a_counter_is_asked_for_the_next_name():
    asked = profile.metrics()
    conflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
    said = (
        "==ERROR== Failed to find metric dram__bytes_read.sum\n"
        rf"==ERROR== Failed to find metric regex:^{conflicts}\.(sum|avg)$"
    )
    missing = profile.unknown(said, asked)
    assert missing == {"dram__bytes_read.sum", f"{conflicts}.sum"}
    again = profile.metrics(missing)
    assert not missing & set(again)
    assert {"dram__bytes_op_read.sum", f"{conflicts}_op_ld.sum"} <= set(again)
    stalls = f"==ERROR== Failed to find metric {profile.STALL_PATTERN}"
    assert profile.unknown(stalls, asked) == {profile.STALL_PATTERN}
    assert profile.unknown("==ERROR== dram__bytes_read.sum is fine", asked) == set()


LOST = (
    "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. Check the driver.\n"
    "==ERROR== The application returned an error code (9).\n"
)
CRASH = "==PROF== Connected\nTraceback\nValueError: odd\n==ERROR== The application returned 1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user", "may not read this GPU's counters (ERR_NVGPUCTR"),
        (LOST, "no counters for ncu, as in some sandboxes: Failed to initialize the profiler: Lib"),
        ("==ERROR== Out of luck.", "ncu failed: Out of luck."),
        (CRASH, "ValueError: odd"),
    ],
)
def test_refusals_of_ncu_are_sentences(text, words):
    assert words in profile.reason(text)


parsed = functools.partial(parsed_by, "profile")


def run(*words):
    args = parsed(*words)
    return args.command(args)


@pytest.fixture
def cpu(monkeypatch):
    """Pretend that a GPU is there; operands are on the CPU, where rungs are interpreted."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    monkeypatch.setattr(cli, "unable", lambda name: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def placed(case, device):
        return operands.operands(case, "cpu" if device == "cuda" else device)

    monkeypatch.setattr(profile, "operands", placed)


@pytest.fixture
def ncu(cpu, tmp_path, monkeypatch):
    """An `ncu` on the PATH; what it does is Python, given its words, which it keeps."""
    calls = tmp_path / "calls"

    def install(body):
        script = tmp_path / "ncu"
        script.write_text(
            f"#!{sys.executable}\n"
            "import json, sys\n"
            "words = sys.argv[1:]\n"
            f"with open({str(calls)!r}, 'a') as file: file.write(json.dumps(words) + '\\n')\n"
            f"{body}\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))
        return lambda: [json.loads(line) for line in calls.read_text().splitlines()]

    return install


def test_ncu_runs_the_command_again(ncu, capsys):
    calls = ncu(f"print({printed()!r})")
    rung = "persistent"
    assert run(rung, "--size", "512x256x128", "--layout", "NN", "--dtype", "fp16") == 0
    (words,) = calls()
    text = " ".join(words)
    assert words[words.index("--metrics") + 1].split(",") == profile.metrics()
    for option in ("--clock-control none", "--cache-control all", "--profile-from-start off",
                   "--target-processes all", "--csv --page raw --print-units base"):  # fmt: skip
        assert option in text
    child = words[words.index(sys.executable) :]
    assert child[1:5] == ["-m", "perf", "profile", rung]
    again = parsed(*child[4:])
    assert again.size == (512, 256, 128) and again.layout == "NN" and again.child
    out = capsys.readouterr().out
    assert out.startswith(f"{rung}, 512 x 256 x 128 NN, fp16, on NVIDIA H200\n")
    assert "duration" in out and "2 kernels in all" in out


def test_json_is_one_object(ncu, capsys):
    ncu(f"print({printed()!r})")
    assert run(RUNGS[0].name, "--json", "--size", "64") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rung"] == RUNGS[0].name
    assert found["case"]["M"] == 64 and found["config"]["BLOCK_M"]
    assert [kernel["kernel"] for kernel in found["kernels"]] == list(KERNELS)
    assert found["kernels"][0]["values"]["dram__bytes_read.sum"] == 67108864
    assert found["all"]["dram__bytes_read.sum"] == 68108864


def test_a_missing_counter_costs_another_run(ncu, capsys):
    calls = ncu(
        "if 'dram__bytes_read.sum' in ' '.join(words):\n"
        "    print('==ERROR== Failed to find metric dram__bytes_read.sum')\n"
        "    sys.exit(1)\n"
        f"print({printed(1)!r})"
    )
    assert run("cublas", "--size", "64") == 0
    assert len(calls()) == 2 and "dram__bytes_op_read.sum" in " ".join(calls()[1])
    assert "no dram__bytes_read.sum; again without" in capsys.readouterr().err


SAID = "x is wrong: 1 of 9"
NOTHING = {
    "no permission": ("print('==ERROR== ERR_NVGPUCTRPERM - no'); sys.exit(1)", "cublas", 2,
                      "--cap-add=SYS_ADMIN"),
    "the child's word": (f"print({SAID!r}); print('==ERROR== The application returned an error')",
                         "cublas", 2, SAID),
    "a refusal": ("raise SystemExit('not reached')", "wmma_base", 2,
                  "wmma_base, 4096 x 4096 x 4096 NT, bf16: the tensors are on"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_it_says_why_there_is_no_profile(ncu, capsys, name):
    body, rung, status, said = NOTHING[name]
    ncu(body)
    assert run(rung) == status
    told = capsys.readouterr()
    assert told.out == "" and said in told.err


def test_without_ncu(cpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(RUNGS[0].name) == 2
    assert capsys.readouterr().err.startswith("ncu was not found: install Nsight Compute")
    assert run(RUNGS[0].name, "--ncu", str(tmp_path / "elsewhere")) == 2
    assert f"{tmp_path / 'elsewhere'} was not found" in capsys.readouterr().err


def test_the_type_is_the_first_that_the_rung_takes_and_a_config_has_its_name(cpu, monkeypatch):
    takes = lambda problem: None if problem.a.dtype == torch.float16 else "fp16 only"  # noqa: E731
    monkeypatch.setattr(profile, "RUNGS", (fake("k02_any"),))
    monkeypatch.setattr(profile, "CUDA_RUNGS", (fake("k01_picky", why_not=takes),))
    assert profile.subject(parsed("any"))[0].dtype == "bf16"
    case, entrant = profile.subject(parsed("picky"))
    assert case.dtype == "fp16" and entrant.ladder == CUDA and entrant.refusal is None
    assert profile.subject(parsed("picky", "--dtype", "bf16"))[1].refusal == "fp16 only"
    assert profile.subject(parsed("any", "--accumulate", "fp16"))[0].dtype == "fp16"
    for name, rows in (("any", 16), ("any[1]", 32)):
        entrant = profile.subject(parsed(name))[1]
        assert (entrant.name, entrant.config["BLOCK_M"]) == (name, rows)
    with pytest.raises(profile.Unprofiled, match=r"any\[2\]: for .* there are any, any\[1\]$"):
        profile.subject(parsed("any[2]"))


def test_the_chosen_config_is_that_of_matmul(ncu, capsys):
    calls = ncu(f"print({printed(1)!r})")
    size = ("--size", "64x64x4096", "--dtype", "fp16")
    assert run("tma", "--chosen", *size, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    a, b = operands.operands(Case(64, 64, 4096, "NT", "fp16"), "cpu")[:2]
    choice = tritemm.explain(a, b, kernel="tma")
    assert dataclasses.asdict(choice.config) != profile.subject(parsed("tma", *size))[1].config
    assert (found["rung"], found["config"]) == ("tma", dataclasses.asdict(choice.config))
    again = parsed(*calls()[0][calls()[0].index("profile") + 1 :])
    assert again.chosen and profile.subject(again)[1].config == found["config"]
    entrant = profile.subject(parsed("auto", *size))[1]
    assert (entrant.name, entrant.rung) == ("auto", tritemm.explain(a, b).kernel.name)
    for words in (("tma[1]", "--chosen"), ("wmma_base", "--chosen"), ("auto[1]",),
                  ("cublas", "--chosen")):  # fmt: skip
        with pytest.raises(profile.Unprofiled, match="can't be chosen: the dispatcher"):
            profile.subject(parsed(*words))


@pytest.fixture
def watched(cpu, monkeypatch):
    """The launches of a fake rung, and the moments when ncu begins and ends to look."""
    seen = []

    @contextlib.contextmanager
    def looking():
        seen.append("begin")
        yield
        seen.append("end")

    def rung(spoil=lambda c: None):
        noted = lambda c: (seen.append("launch"), spoil(c))  # noqa: E731
        monkeypatch.setattr(profile, "RUNGS", (fake("k01_good", noted),))
        return seen

    monkeypatch.setattr(torch.cuda.profiler, "profile", looking)
    return rung


def test_the_child_shows_one_warm_launch(watched):
    seen = watched()
    assert run("good", "--size", "48x40x32", "--child") == 0
    assert seen[-3:] == ["begin", "launch", "end"]
    assert seen.index("begin") >= 2 + profile.WARM


def crash(c):
    raise RuntimeError("no cubin")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_one, "good is wrong: 1 of 1920 elements are wrong"),
        (crash, "good failed: RuntimeError: no cubin"),
    ],
)
def test_the_child_refuses_a_red_kernel(watched, capsys, spoil, said):
    seen = watched(spoil)
    assert run("good", "--size", "48x40x32", "--child") == 2
    assert "begin" not in seen and said in capsys.readouterr().err
