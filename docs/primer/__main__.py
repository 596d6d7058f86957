"""Runs the primer's kernels, and compares them with torch: `python -m docs.primer`."""

import torch

from tritemm.machine.interpreter import INTERPRETED

from .kernels import add, add_unmasked, matmul_by_elements, matmul_by_tiles, relu


def main():
    device = "cpu" if INTERPRETED else "cuda"
    # Views of longer buffers: what is beyond their ends is ours, whoever reads or writes it.
    x, y = (torch.arange(12.0, device=device)[:10] for _ in range(2))
    for function in (add, add_unmasked):
        buffer = torch.full((12,), -1.0, device=device)
        function(x, y, buffer[:10])
        print(f"{function.__name__:12} ", buffer.int().tolist())
    x = torch.randn(6, 11, device=device)
    same = torch.equal(relu(x), x.relu()) and torch.equal(relu(x.T), x.T.relu())
    print(f"relu, of x and x.T: {said(same)}")
    a, b = torch.randn(17, 8, device=device), torch.randn(8, 5, device=device)
    for function in (matmul_by_elements, matmul_by_tiles):
        same = torch.allclose(function(a, b), a @ b, rtol=0, atol=1e-4)
        print(f"{function.__name__}: {said(same)}")


def said(same):
    return "agrees with torch" if same else "differs from torch"


if __name__ == "__main__":
    main()
