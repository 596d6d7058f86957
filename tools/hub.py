"""Lay tritemm out as a kernel for Hugging Face's `kernels`, which loads kernels from its hub.

    python -m tools.hub FOLDER                 # FOLDER/build/torch-cuda/, and a card
    python -m tools.hub FOLDER --backend cpu   # torch-cpu, where kernels run in the interpreter

The package is copied as it is, with a metadata.json. Its id becomes the module's name and so the
namespace of its operators (tritemm/namespace.py); it has a hash of the code, so that versions can
be loaded side by side. Nothing is uploaded: `hf upload` does that.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from .suite_record import ROOT, code_hash

PACKAGE = ROOT / "tritemm"
CARD = """\
---
library_name: kernels
license: mit
---

tritemm: tensor-core matrix multiplication in Triton. `get_kernel` loads it, and `Linear` is its
layer. It needs an NVIDIA GPU of compute capability 8.0 or newer, and numpy beside torch.
"""


def lay_out(folder: Path, backend: str = "cuda", version: int = 1, package: Path = PACKAGE) -> Path:
    """Write the kernel's repository into `folder`; returns the build that is in it.

    `version` is the number that `get_kernel(version=...)` takes: it changes with the interface.
    """
    build = folder / "build" / f"torch-{backend}"
    if build.exists():
        shutil.rmtree(build)
    shutil.copytree(package, build, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = {
        "id": f"_tritemm_{backend}_{code_hash(package)[:8]}",
        "name": "tritemm",
        "version": version,
        "license": "MIT",
        "python-depends": [],  # torch brings what tritemm imports; `kernels` knows few others
        "backend": {"type": backend},
    }
    (build / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    (folder / "README.md").write_text(CARD)
    return build


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.hub", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the repository is written")
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--version", type=int, default=1, help="for get_kernel(version=...)")
    given = parser.parse_args(args)
    print(lay_out(given.folder, given.backend, given.version))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
