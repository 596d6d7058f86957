"""The notebooks run from the first cell to the last, and show what they have shown."""

import json
import re

import pytest

from docs.site import notebook

pytestmark = [pytest.mark.host, pytest.mark.once]

NOTEBOOKS = sorted(notebook.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_and_show(path):
    """A cell whose output is kept shows something, and one without shows nothing."""
    read = json.loads(path.read_text())
    for cell, shown in zip(notebook.code_cells(read), notebook.run(read), strict=True):
        assert bool(shown) == bool(cell["outputs"]), "".join(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_no_machines(path):
    """No paths of where they were made."""
    said = notebook.markdown(json.loads(path.read_text()))
    assert not re.search(r"(?<![\w.`])/(?:tmp|home|root|work|usr|opt|Users)\b", said)


def test_a_cell_shows_what_jupyter_would():
    cells = [
        "x = 1",
        "x + 1",
        "print(x)\nx;",
        "x\nNone",
        "import inspect\ndef f():\n    return 2\nprint(inspect.getsource(f))",
    ]
    read = {"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]}
    shown = ["".join(lines) for lines in notebook.run(read)]
    assert shown == ["", "2\n", "1\n", "", "def f():\n    return 2\n\n"]
