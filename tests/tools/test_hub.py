"""The layout for Hugging Face's `kernels`, and several copies of tritemm in one process.

`kernels` itself isn't installed here: these load as its importer.py does, release 0.17.
"""

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys

import pytest
from torch import nn

import tritemm
from perf.machine import ROOT
from tests.harness import surroundings
from tools import hub

pytestmark = [pytest.mark.host, pytest.mark.once]

CHILD = """
import importlib.util, json, pathlib, sys
import torch, triton, numpy

known = set(sys.modules)  # `kernels` installs nothing more
import tritemm

found = {name.partition(".")[0] for name in set(sys.modules) - known}
assert found - sys.stdlib_module_names <= {"tritemm", "torch", "triton", "filelock", "numpy"}

def load(build):
    build = pathlib.Path(build)
    name = json.loads((build / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, build / "__init__.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

copies = [*map(load, sys.argv[1:]), tritemm]
x, w = torch.randn(8, 16), torch.randn(4, 16)
model = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU())

called = set()  # namespaces of operators that aren't torch's

def backend(graph, inputs):
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    called.update(t.partition(".")[0] for t in targets if t.endswith(".default"))
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

for copy in copies:
    assert copy.namespace.NAMESPACE == copy.nn.registered.NAME == copy.__name__
    torch.testing.assert_close(copy.linear(x, w), x @ w.mT)
    compiled = torch.compile(copy.linear, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, w), x @ w.mT)
    assert called == {copy.__name__}, called
    called.clear()
    want = model(x)
    copy.convert(model)
    assert type(model[0]).__module__ == f"{copy.__name__}.nn.converted"
    torch.testing.assert_close(model(x), want)
    with copy.enabled() as report:
        torch.testing.assert_close(torch.mm(x, w.mT), copy.matmul(x, w.mT))
    assert report.ran == {"mm": 1}
    copy.nn.restore(model)
    assert type(model[0]) is torch.nn.Linear

find = copies[0].rungs.find
from_worker = sys.modules[f"{copies[0].__name__}.compile.pool"].Worker()
assert from_worker.ask(find, "tiled") is find("tiled")
from_worker.close()
print([copy.__name__ for copy in copies])
"""


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Of the code as it is, and of other code."""
    other = tmp_path_factory.mktemp("other") / "tritemm"
    shutil.copytree(hub.PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
    with open(other / "version.py", "a") as file:
        file.write("# newer\n")
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    return [
        hub.lay_out(folders[0], version=1),
        hub.lay_out(folders[1], version=2, package=other),
    ]


def test_what_kernels_reads(builds, tmp_path, capsys):
    """The variant of the backend, and in it a package and metadata.json with all that it needs."""
    ids = set()
    for build, version in zip(builds, (1, 2), strict=True):
        assert (build.parent.name, build.name) == ("build", "torch-cuda")
        told = json.loads((build / "metadata.json").read_text())
        ids.add(told.pop("id"))
        assert told == {
            "name": "tritemm", "version": version, "license": "MIT", "python-depends": [],
            "backend": {"type": "cuda"},
        }  # fmt: skip
        assert (build / "arch" / "gpus" / "nvidia-h200.json").exists()
        assert not list(build.rglob("__pycache__"))
    assert len(ids) == 2 and all(re.fullmatch(r"_tritemm_cuda_[0-9a-f]{8}", each) for each in ids)
    (tmp_path / "build" / "torch-cpu").mkdir(parents=True)
    (tmp_path / "build" / "torch-cpu" / "old.py").write_text("")
    assert hub.main([str(tmp_path), "--backend", "cpu"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'build' / 'torch-cpu'}\n"
    assert not (tmp_path / "build" / "torch-cpu" / "old.py").exists()
    assert (tmp_path / "README.md").read_text().startswith("---\nlibrary_name: kernels\n")


def test_copies_in_one_process(builds):
    """Two versions beside the installed package: each multiplies by operators of its own, eager and
    compiled, and its layers, routes and compiling workers are its own. Importing one imports no
    other packages than those that tools/hub.py tells of."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", CHILD, *map(str, builds)]
    env = surroundings(OMP_NUM_THREADS="1")
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    names = [json.loads((build / "metadata.json").read_text())["id"] for build in builds]
    assert run.stdout == f"{[*names, 'tritemm']}\n"


def test_the_package_imports_itself_by_no_name():
    found = []
    for path in sorted((ROOT / "tritemm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            found += [(path.name, name) for name in names if name.split(".")[0] == "tritemm"]
    assert found == []


def test_a_layer_is_as_kernels_asks():
    """No constructor, no other members, the forward of the layer that it replaces."""
    layer = tritemm.layers.Linear
    assert issubclass(layer, nn.Module) and layer.__init__ is nn.Module.__init__
    members = {name for name, _ in inspect.getmembers(layer)}
    members -= {name for name, _ in inspect.getmembers(nn.Module)}
    assert members == {"can_torch_compile", "has_backward"}
    ours, theirs = (inspect.signature(each.forward).parameters for each in (layer, nn.Linear))
    assert [each.kind for each in ours.values()] == [each.kind for each in theirs.values()]
