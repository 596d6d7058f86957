"""Tries the tritemm that is installed, without a checkout in sight: python -I tools/installed.py

Multiplies in Triton's interpreter, predicts for a GPU, and starts a command.
"""

import subprocess
import sys
from pathlib import Path

import torch

import tritemm


def main() -> None:
    place = Path(tritemm.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not in {sys.prefix}"
    for dtype in (torch.float32, torch.float16):
        # Sums of small whole numbers are exact in any order.
        a, b = (torch.randint(-4, 5, shape).to(dtype) for shape in ((70, 50), (50, 33)))
        c = tritemm.matmul(a, b, kernel="tiled")
        assert c.shape == (70, 33) and torch.equal(c.double(), a.double() @ b.double()), dtype
    x = torch.empty(4096, 4096, dtype=torch.float16, device="meta")
    assert "predicted" in str(tritemm.explain(x, x, device="H200"))
    command = [sys.executable, "-I", "-m", "tritemm", "ladder"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(
        f"tritemm {tritemm.__version__} multiplies with torch {torch.__version__} on Python "
        f"{sys.version.partition(' ')[0]}"
    )


if __name__ == "__main__":
    main()
