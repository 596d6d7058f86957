"""Data flows one way: no module of tritemm imports from a floor above its own, lazily or not."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path

import pytest

pytestmark = [pytest.mark.host, pytest.mark.once]

ROOT = Path(__file__).resolve().parent.parent
#: From the ground up. A name stands for a module, or for a package with all that is in it but what
#: has a floor of its own; those side by side on a floor know nothing of each other. `spec` stands
#: above `runtime`, because what it says of a Triton kernel includes how it is launched, and below
#: `kernels`, which are made of it; so `runtime` knows compiled kernels and addresses, and no rung.
FLOORS = (
    ("machine", "namespace", "version"),
    ("problem",),
    ("budget", "dtypes"),
    ("runtime",),
    ("spec",),
    ("kernels.device",),
    ("arch",),
    ("kernels",),
    ("rungs",),
    ("compile", "dispatch"),
    ("plan",),
    ("op",),
    ("api", "takeover"),
    ("nn",),
    ("layers", "vllm_plugin"),
    ("__init__", "cli"),
    ("__main__",),
)
FLOOR = {entry: i for i, entries in enumerate(FLOORS) for entry in entries}
#: What imports by a name that is made up at run time: the rungs, the facts of a bug report, and
#: what may be missing.
DYNAMIC = {"tritemm.cli.env", "tritemm.machine.needs", "tritemm.rungs"}


def sources(root: Path = ROOT) -> dict[str, str]:
    """The text of each module by its dotted name; a package's ends in `__init__`."""
    paths = sorted((root / "tritemm").rglob("*.py"))
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text() for path in paths
    }


@functools.cache
def statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a text, also those inside functions."""
    nodes = ast.walk(ast.parse(text))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(modules: Mapping[str, str], module: str) -> Iterator[str]:
    """The modules of tritemm that this one imports anywhere in its text."""
    package = module.rpartition(".")[0]
    for node in statements(modules[module]):
        base = ""
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) + "."
        for name in (base + alias.name for alias in node.names):
            while name:
                known = [m for m in (name, f"{name}.__init__") if m in modules]
                if known:
                    yield known[0]
                    break
                name = name.rpartition(".")[0]


def place(module: str) -> tuple[int, str] | None:
    """Floor and entry of FLOORS; None if there is none."""
    names = module.split(".")[1:3]
    entry = next((each for each in (".".join(names), names[0]) if each in FLOOR), None)
    return entry and (FLOOR[entry], entry)


def faults(modules: Mapping[str, str]) -> list[str]:
    """What is wrong: modules without a floor, arrows upwards or aside, circles."""
    found = [f"{module} has no floor" for module in modules if place(module) is None]
    graph = {module: set(imports(modules, module)) for module in modules}
    for module, targets in graph.items():
        for target in targets:
            here, there = place(module), place(target)
            if here and there and here[1] != there[1] and there[0] >= here[0]:
                way = "up" if there[0] > here[0] else "aside"
                found.append(f"{module} imports {way}, from {target}")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append("a circle: " + " <- ".join(error.args[1]))
    return found


def test_nothing_imports_upwards():
    assert faults(sources()) == []


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("tritemm.compile.pool", "from ..api import matmul", "up, from tritemm.api"),
        ("tritemm.compile.pool", "from .. import api", "up, from tritemm.api"),
        ("tritemm.compile.pool", "import tritemm.op.gemm as low", "up, from tritemm.op.gemm"),
        ("tritemm.kernels.k08_tma", "from ..dispatch import cache", "up, from tritemm.dispatch."),
        ("tritemm.arch.lines", "from ..kernels import pack", "up, from tritemm.kernels.pack"),
        ("tritemm.kernels.device.ptx", "from ...arch import lines", "up, from tritemm.arch.lines"),
        ("tritemm.dispatch.cache", "from .. import __version__", "up, from tritemm.__init__"),
        ("tritemm.dispatch.cache", "from ..compile import sass", "aside, from tritemm.compile"),
        ("tritemm.api.warming", "from ..takeover import routing", "aside, from tritemm.takeover"),
        ("tritemm.attic", "import math", "tritemm.attic has no floor"),
        ("tritemm.dispatch.cost_model.constants", "from . import model", "a circle: "),
    ],
)
def test_a_planted_import_is_found(module, line, fault):
    """At the module's end or inside a function of it."""
    real = sources()
    for planted in (line, f"def late():\n    {line}"):
        text = f"{real.get(module, '')}\n{planted}\n"
        found = faults(real | {module: text})
        assert any(fault in each for each in found), found


def test_only_arch_knows_the_number_of_a_compute_capability():
    compared = re.compile(r"(capability|major|minor)(\[\d\])?\s*[<>=!]=?\s*\(?\d")
    found = {module for module, text in sources().items() if compared.search(text)}
    assert found == set() and compared.search("device.capability < (9, 0)")


def test_every_floor_is_lived_on():
    assert {place(module)[1] for module in sources()} == set(FLOOR)


def test_names_that_are_made_up_are_few():
    used = {module for module, text in sources().items() if "import_module(" in text}
    assert used == DYNAMIC
