"""Exercises in which you complete or repair a kernel. They run on the CPU, with or without a GPU.

`python -m docs.exercises write RUNG` writes a file to start from, and
`python -m docs.exercises write RUNG FILE` checks it. `command` is that command, and `child` the
process in which it runs the kernel. Only that process imports torch, Triton and tritemm.

An exercise is a module ex_RUNG. Its docstring is the question, and `HINT` a hint. The lines above
`# --- the check` are a solution; without the docstring and relative imports they are also the file
to start from, once `start` has exchanged what is marked in them:

    # --- your part: what to do
    the solution's lines
    # --- to start from
    #| what the file has in their place
    # --- end

`check(module)` raises `Wrong` with a sentence that says where the kernel goes wrong. `CLUES` are
sentences that it adds if the result is what a known mistake makes of it.
"""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

#: A page that is no rung's.
PRIMER = "primer"
#: What the commands need.
WHERE = "the repository's root, with its environment active"
_HERE = Path(__file__).parent
_PAGES = _HERE.parents[1] / "tutorial"
_REST = "\n\n# --- the check\n"
_RELATIVE = re.compile(r"^from \.[\w.]* import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)
_PART = re.compile(
    r"^ *# --- your part: [^\n]*\n(?P<solution>.*?)^ *# --- to start from\n(?P<start>.*?)"
    r"^ *# --- end\n",
    re.MULTILINE | re.DOTALL,
)


def find(rung: str) -> ModuleType:
    """The exercise of a rung; ModuleNotFoundError if it has none."""
    return importlib.import_module(f"{__name__}.ex_{rung}")


def every() -> list[str]:
    """The rungs that have one, the primer's first, in the order of the tutorial's pages."""
    names = (page.stem.partition("_")[2] for page in sorted(_PAGES.glob("[0-9]*.md")))
    return [name for name in names if _path(name).exists()]


def question(rung: str) -> str:
    return ast.get_docstring(_tree(rung))


def hint(rung: str) -> str:
    for node in _tree(rung).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "HINT":
            return inspect.cleandoc(ast.literal_eval(node.value))
    raise ValueError(f"ex_{rung} has no HINT")


def solution(rung: str) -> str:
    """The whole file, with the solution in it."""
    return _file(rung, "solution")


def start(rung: str) -> str:
    """The whole file, with the lines to start from."""
    return _file(rung, "start")


def parts(rung: str) -> str:
    """The solution's lines alone."""
    found = (_lines(part, "solution") for part in _PART.finditer(_source(rung)))
    return "\n\n".join(textwrap.dedent(lines).rstrip() for lines in found)


def name_of(rung: str) -> str:
    """The file that the command writes."""
    return f"my_{rung}.py"


def functions(rung: str) -> list[str]:
    """The names of the functions that the file has at the start."""
    return [node.name for node in ast.parse(start(rung)).body if isinstance(node, ast.FunctionDef)]


def _path(rung: str) -> Path:
    return _HERE / f"ex_{rung}.py"


def _tree(rung: str) -> ast.Module:
    return ast.parse(_path(rung).read_text())


def _source(rung: str) -> str:
    """The module's lines above the check, without its docstring and relative imports."""
    text, mark, _ = _path(rung).read_text().partition(_REST)
    assert mark, f"ex_{rung} has no line {_REST.strip()!r}"
    code = text.partition('"""\n')[2]
    return re.sub("\n{4,}", "\n\n\n", _RELATIVE.sub("", code)).strip("\n") + "\n"


def _file(rung: str, which: str) -> str:
    def put(part: re.Match) -> str:
        first, *_ = part[0].splitlines(keepends=True)
        indent = first[: first.index("#")]
        return f"{first}{_lines(part, which)}{indent}# --- end of your part\n"

    command = f"python -m docs.exercises write {rung} {name_of(rung)}"
    head = f'"""{question(rung)}\n\nTo check this file, from {WHERE}:\n{command}\n"""\n\n'
    return head + _PART.sub(put, _source(rung))


def _lines(part: re.Match, which: str) -> str:
    return re.sub(r"^( *)#\| ?", r"\1", part[which], flags=re.MULTILINE)
