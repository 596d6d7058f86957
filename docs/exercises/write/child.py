"""The process in which a file's kernel runs: in Triton's interpreter, and under a time limit.

`python -m docs.exercises.write.child REPORT SECONDS RUNG FILE [RUNG FILE ...]` appends a line of
JSON to REPORT for each file: null if it is right, or else a sentence. A step that takes longer than
SECONDS ends the process, with the stacks of its threads in REPORT.
"""

import importlib.util
import json
import sys
from types import ModuleType

from docs.exercises import Wrong, told
from tritemm.machine import interpreted

from . import find
from .checker import WATCHDOG, line_of


def verdict(rung: str, file: str) -> str | None:
    """What is wrong with a file, as a sentence; None if nothing is."""
    try:
        find(rung).check(loaded(file))
    except Wrong as wrong:
        return str(wrong)
    return None


def loaded(file: str) -> ModuleType:
    """The file as a module; `Wrong` if it can't be imported."""
    spec = importlib.util.spec_from_file_location("learners_kernel", file)
    module = importlib.util.module_from_spec(spec)
    try:
        with WATCHDOG.limited(), interpreted.decorating():  # faster than Triton's own, and as exact
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename == file:
            raise Wrong(f"Line {error.lineno}: {error.msg}.") from error
        raise Wrong(f"{line_of(file, error)}: {told(error)}.") from error
    return module


def main(path: str, seconds: str, *pairs: str) -> None:
    with open(path, "a") as report:
        WATCHDOG.seconds, WATCHDOG.report = float(seconds), report
        for rung, file in zip(pairs[::2], pairs[1::2], strict=True):
            said = verdict(rung, file)
            print(json.dumps(said), file=report, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
