"""tritemm's operators and layers on torch's DTensor: sharded as unsharded, to the bit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perf.machine import ROOT
from tests.harness import surroundings

FOLDER = Path(__file__).parent
FILES = [(FOLDER / f"distributed_{name}.py").read_text() for name in ("operators", "models")]
ALL = re.findall(r"^def check_(\w+)", "".join(FILES), re.M)
#: Checks that need four processes, and those that two and four run. Two run all others.
FOUR = ["two_dimensions", "fsdp_of_tensor_parallel"]
BOTH = ["products_and_gradients", "parallelize_module", "bits_of_any_number"]
#: Those that run on the CPU alone.
HOST = ["converted_models"]
#: Size of a group of processes -> the checks that it runs.
GROUPS = {2: [name for name in ALL if name not in FOUR], 4: BOTH + FOUR}
CASES = [(size, name) for size, names in GROUPS.items() for name in names]


def program(*command, device: str) -> subprocess.CompletedProcess:
    """Run one of ours with `device` as its only kind of device."""
    env = surroundings(OMP_NUM_THREADS="1", NCCL_NVLS_ENABLE="0")
    env |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )


def faults(folder: Path, groups: dict[int, list[str]], device: str) -> dict[tuple, list]:
    """(size, check) -> the traceback, or None, of each process that finished."""
    words = [f"{size}:{','.join(names)}" for size, names in groups.items()]
    done = program(
        "-m", "tests.torch.distributed_ranks", folder, *words, "--device", device, device=device
    )
    found = {}
    for path in sorted(folder.iterdir()):
        for name, fault in json.loads(path.read_text()).items():
            found.setdefault((int(path.stem.split("_")[0]), name), []).append(fault)
    assert found, done.stderr
    return found


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    return faults(tmp_path_factory.mktemp("gloo"), GROUPS, "cpu")


@pytest.mark.host
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize(("size", "name"), CASES)
def test_on_processes(size, name, on_cpu):
    found = on_cpu.get((size, name), [])
    assert len(found) == size
    assert not any(found), next(filter(None, found))


@pytest.mark.host
def test_dtensor_is_not_imported_before_it_is_used():
    code = "import sys, tritemm; sys.exit('torch.distributed.tensor' in sys.modules)"
    assert program("-c", code, device="cpu").returncode == 0


@pytest.mark.gpu
@pytest.mark.parametrize("size", [pytest.param(n, marks=pytest.mark.devices(n)) for n in GROUPS])
def test_on_devices(size, tmp_path):
    names = [name for name in GROUPS[size] if name not in HOST]
    found = faults(tmp_path, {size: names}, "cuda")
    assert found.keys() == {(size, name) for name in names}
    for each in found.values():
        assert len(each) == size
        assert not any(each), next(filter(None, each))


@pytest.mark.gpu
@pytest.mark.devices(2)
@pytest.mark.parametrize("example", ["tensor_parallel", "expert_parallel"])
def test_an_example_runs(example):
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2
    done = program(*torchrun, ROOT / "examples" / f"{example}.py", device="cuda")
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"step \d: loss (\S+) on 2 devices, (\S+) on one", done.stdout)
    assert len(steps) == 3, done.stdout
