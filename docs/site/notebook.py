"""Runs the notebooks and shows them: `python -m docs.site.notebook [FILE ...]` renews the outputs.

A cell is executed as Jupyter would: its prints are shown, and so is the value of a last expression
that no semicolon follows.
Nothing else is needed than the project's own environment.
"""

import argparse
import ast
import contextlib
import io
import json
import linecache
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def run(notebook: dict) -> Iterator[list[str]]:
    """Executes the code cells in order, in one namespace; yields the lines that each shows."""
    names: dict = {"__name__": "notebook"}
    for number, cell in enumerate(code_cells(notebook), 1):
        yield execute("".join(cell["source"]), f"<cell {number}>", names)


def execute(source: str, name: str, names: dict) -> list[str]:
    """The lines that one cell shows; `inspect`, and so Triton, finds its source by this name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree, last = ast.parse(source, name), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        value = eval(compile(last, name, "eval"), names) if last else None
        if value is not None and not source.rstrip().endswith(";"):
            print(repr(value))
    return printed.getvalue().splitlines(keepends=True)


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def renew(path: Path) -> None:
    """Write the outputs of a run into the file."""
    notebook = json.loads(path.read_text())
    for number, (cell, shown) in enumerate(
        zip(code_cells(notebook), run(notebook), strict=True), 1
    ):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": shown}
        cell["outputs"] = [stream] if shown else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def markdown(notebook: dict) -> str:
    """A page that shows the cells and their outputs."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        shown = "".join(line for out in cell["outputs"] for line in out.get("text", ()))
        if shown:
            parts.append(
                f'<div class="output" markdown>\n\n```text\n{shown.rstrip()}\n```\n\n</div>'
            )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m docs.site.notebook",
        description="Run notebooks from the first cell to the last, and renew their outputs.",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all")
    for given in parser.parse_args().files or sorted(FOLDER.glob("*.ipynb")):
        renew(given)
