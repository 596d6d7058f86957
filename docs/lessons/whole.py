"""The whole file of a rung, for its page, and what each part that it is composed of does."""

import ast
import re
from pathlib import Path

from tritemm.spec import Kernel

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "tritemm" / "kernels"


def kernel(of: Kernel) -> str:
    """The file to be opened, and a sentence and a link for each part that it imports."""
    path = KERNELS / f"{of.module.rpartition('.')[2]}.py"
    text = path.read_text()
    summary = f"<summary>{path.name}, {len(text.splitlines())} lines</summary>"
    shown = ["<details>", summary, "", "```python", text.rstrip(), "```", "", "</details>"]
    used = [line for file, names in imported(text).items() for line in parts(file, names)]
    return "\n".join([*shown, "", "The parts that it takes from other files:", "", *used])


def imported(text: str) -> dict[Path, list[str]]:
    """The files of tritemm/kernels/ that the file takes names from, and those names."""
    found: dict[Path, list[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            folder = KERNELS / (node.module or "").replace(".", "/")
            for alias in node.names:
                inner = folder / f"{alias.name}.py"
                names = found.setdefault(inner if inner.exists() else folder.with_suffix(".py"), [])
                names += [] if inner.exists() else [alias.name]
    return found


def parts(file: Path, names: list[str]) -> list[str]:
    """A line for each function and class of the file, or one for the file as a whole.

    Constants have no docstring, and no line.
    """
    tree = ast.parse(file.read_text())
    link = f"[{file.relative_to(KERNELS)}](../../{file.relative_to(ROOT)})"
    if not names:
        return [f"- {link}: {first_sentence(tree)}"]
    known = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    said = {name: first_sentence(known[name]) for name in names if name in known}
    return [f"- `{name}` of {link}: {sentence}" for name, sentence in said.items() if sentence]


def first_sentence(node) -> str:
    said = re.sub(r"\s+", " ", ast.get_docstring(node) or "")
    return re.split(r"(?<=\.) ", said, maxsplit=1)[0]
