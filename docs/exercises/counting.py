"""How many elements a rung asks for, counted while it runs in Triton's interpreter."""

from unittest import mock

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder

import tritemm


def of_product(rung: str, M: int, N: int, K: int, **config: int) -> int:
    """Elements of A and B that all programs of a rung ask for together, in this config."""
    a, b = torch.ones(M, K, dtype=torch.float16), torch.ones(K, N, dtype=torch.float16)
    loaded, load = 0, InterpreterBuilder.create_masked_load

    def counted(builder, ptrs, mask, *more):
        nonlocal loaded
        loaded += int(np.count_nonzero(mask.data))
        return load(builder, ptrs, mask, *more)

    with mock.patch.object(InterpreterBuilder, "create_masked_load", counted):
        out = tritemm.matmul(a, b, kernel=rung, config=config or None)
    assert bool((out == K).all())
    return loaded
