"""The tables of the page on what is supported: what the gate runs on, and the records of GPUs."""

import json
import re
from pathlib import Path

from perf.tables import Table, markdown
from tools import suite_record

ROOT = Path(__file__).resolve().parents[1]
#: What each of the Makefile's targets runs.
RUNS = {
    "test": "the whole suite, on every change",
    "test-oldest": "what depends on Triton, and one in twenty of the tests that depend on torch, "
    "on every change",
    "test-latest": "what depends on Triton, on request",
}


def parts() -> dict[str, str]:
    return {"gate": gate(), "gpus": gpus()}


def releases() -> dict[str, dict[str, str]]:
    """Target of the Makefile -> torch and Triton, as the files that install them say."""
    constraints, project, makefile = (
        (ROOT / name).read_text() for name in ("constraints.txt", "pyproject.toml", "Makefile")
    )
    pinned = dict(re.findall(r"^(torch|triton)==(\S+)", constraints, re.MULTILINE))
    oldest = dict(re.findall(r'"(torch|triton)>=([\d.]+)', project))
    latest = dict(re.findall(r"^LATEST = (triton)==(\S+)$", makefile, re.MULTILINE))
    return {
        "test": pinned,
        "test-oldest": {name: f"{release}.0" for name, release in oldest.items()},
        "test-latest": pinned | latest,
    }


def gate() -> str:
    rows = [
        [f"`make {target}`", found["torch"], found["triton"], RUNS[target]]
        for target, found in releases().items()
    ]
    return markdown([Table(["", "torch", "Triton", "what runs"], rows)])


def gpus() -> str:
    rows = []
    for path in sorted(suite_record.RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        said = [str(record[name]) for name in ("torch", "triton", "cuda", "driver", "python")]
        counts = f"{record['passed']} passed, {record['failed'] + record['errors']} failed"
        commit = (record["commit"] or "unknown")[:7]
        rows.append([suite_record.where(record), *said, counts, commit])
    head = ["GPU", "torch", "Triton", "CUDA", "driver", "Python", "tests", "commit"]
    return markdown([Table(head, rows)])
