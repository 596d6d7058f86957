"""How many elements a rung asks for, counted while it runs in Triton's interpreter."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder

import tritemm


class Count:
    """Elements that were loaded."""

    loaded = 0


@contextlib.contextmanager
def loads() -> Iterator[Count]:
    """Counts the elements that kernels load while it is open; those that are masked don't count."""
    count, load = Count(), InterpreterBuilder.create_masked_load

    def counted(builder, ptrs, mask, *more):
        count.loaded += int(np.count_nonzero(mask.data))
        return load(builder, ptrs, mask, *more)

    with mock.patch.object(InterpreterBuilder, "create_masked_load", counted):
        yield count


def of_product(rung: str, M: int, N: int, K: int, **config: int) -> int:
    """Elements of A and B that all programs of a rung ask for together, in this config."""
    a, b = torch.ones(M, K, dtype=torch.float16), torch.ones(K, N, dtype=torch.float16)
    with loads() as count:
        out = tritemm.matmul(a, b, kernel=rung, config=config or None)
    assert bool((out == K).all())
    return count.loaded
