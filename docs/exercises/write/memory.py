"""Tensors that know which of their elements a kernel may touch, and what looks at each access.

The interpreter's loads and stores are looked at before they happen. So an access outside of the
tensors is told with its line and element, and never touches memory.
"""

import contextlib
import dataclasses
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder

from docs.exercises import Wrong

#: Elements before and after a tensor, and between its lines, which no kernel may touch.
GUARD, GAP = 64, 5
#: How a matrix may be stored, and what is said of it.
STORED = {"rows": "", "columns": "by columns", "apart": "as every second column of a matrix"}
#: Lines begin so many elements apart, or a multiple: TMA wants one of 16 bytes.
LINE = 16


class Matrix:
    """A matrix in a storage of its own, between guards. `stored` says how its elements follow.

    "rows": those of a row are adjacent; "columns": those of a column are; "apart": every second
    one of a row is the matrix's. Lines begin a few elements behind the end of the one before.
    A matrix without `values` is an output: all of it is poison.
    """

    def __init__(self, name: str, shape: Sequence[int], dtype: torch.dtype, stored: str = "rows",
                 values: torch.Tensor | None = None):  # fmt: skip
        self.name, self.shape, self.output = name, tuple(shape), values is None
        self.stored = stored
        strides = _strides(self.shape, stored)
        count = 1 + sum((n - 1) * stride for n, stride in zip(self.shape, strides, strict=True))
        self.storage = torch.zeros(count + 2 * GUARD, dtype=dtype)
        self.storage.fill_(poison(self.storage.numpy().dtype).item())
        self.tensor = self.storage.as_strided(self.shape, strides, GUARD)
        own = np.arange(len(self.storage), dtype=np.int32)
        self._own = np.zeros(len(self.storage), bool)
        self._own[torch.from_numpy(own).as_strided(self.shape, strides, GUARD).flatten()] = True
        #: The program that has stored each element; -1: none.
        self.owner = np.full(len(self.storage), -1)
        if values is not None:
            self.tensor.copy_(values)

    def owners(self) -> np.ndarray:
        """Of each element, the program that has stored it; -1: none."""
        strides, size = self.tensor.stride(), self.owner.itemsize
        return np.lib.stride_tricks.as_strided(
            self.owner[GUARD:], self.shape, [stride * size for stride in strides]
        )

    def places(self, addresses: np.ndarray) -> np.ndarray:
        """Addresses as indices of the storage."""
        size = self.storage.element_size()
        return (addresses.astype(np.int64) - self.storage.data_ptr()) // size

    def has(self, places: np.ndarray) -> np.ndarray:
        """Which of these indices are elements of the matrix."""
        within = (places >= 0) & (places < len(self._own))
        return within & self._own[np.where(within, places, 0)]

    def called(self, place: int) -> str:
        """`A[2, 70]`: an index of the storage as that of an element, which may not exist."""
        left, indices = int(place) - GUARD, [0] * len(self.shape)
        if left < 0:
            return f"{self.name}, {-left} elements before its first"
        strides = self.tensor.stride()
        for axis in sorted(range(len(strides)), key=lambda each: -strides[each]):
            indices[axis], left = divmod(left, strides[axis])
        between = ", between two elements" if left else ""
        return f"{self.name}{indices}{between}"

    def __repr__(self) -> str:
        if len(self.shape) == 1:
            return f"{self.name} ends at {self.name}[{self.shape[0] - 1}]"
        size = " x ".join(map(str, self.shape))
        return f"{self.name} is {size}, stored {STORED[self.stored] or 'by rows'}"


def _strides(shape: tuple[int, ...], stored: str) -> tuple[int, ...]:
    if len(shape) == 1:
        return (1,)
    adjacent, step = {"rows": (1, 1), "columns": (0, 1), "apart": (1, 2)}[stored]
    pitch = -(-(shape[adjacent] * step + GAP) // LINE) * LINE
    return (pitch, step) if adjacent else (step, pitch)


@dataclasses.dataclass
class Looker:
    """Looks at each access of a kernel, and lets its programs run in some order."""

    file: str
    matrices: Sequence[Matrix]
    grid: tuple[int, ...]
    #: Of a random order of the programs; 0: as they are numbered.
    seed: int

    def __post_init__(self) -> None:
        programs = [(x, y) for x in range(self.grid[0]) for y in range((*self.grid, 1)[1])]
        turns = random.Random(self.seed).sample(programs, len(programs))
        self._turn = dict(zip(programs, turns if self.seed else programs, strict=True))
        self._stored = {each.name: np.full_like(each.owner, -1) for each in self.matrices}

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "set_grid_idx")
        usual = {name: getattr(InterpreterBuilder, name) for name in names}

        def load(builder, ptrs, mask, other, *more, **named):
            self.look(builder, "loads", ptrs, mask)
            loaded = usual["create_masked_load"](builder, ptrs, mask, other, *more, **named)
            if other is None:  # any values, as on a GPU; the interpreter's own are zeros
                loaded.data = np.where(_data(mask), loaded.data, poison(loaded.data.dtype))
            return loaded

        def store(builder, ptrs, value, mask, *more, **named):
            self.look(builder, "stores", ptrs, mask)
            return usual["create_masked_store"](builder, ptrs, value, mask, *more, **named)

        def add(builder, op, ptrs, value, mask, *more):
            self.look(builder, "adds to", ptrs, mask)
            return usual["create_atomic_rmw"](builder, op, ptrs, value, mask, *more)

        def turn(builder, x, y, z):
            usual["set_grid_idx"](builder, *self._turn[x, y], z)

        ours = dict(zip(names, (load, store, add, turn), strict=True))
        with mock.patch.multiple(InterpreterBuilder, **ours):
            yield

    def look(self, builder: Any, does: str, ptrs: Any, mask: Any) -> None:
        """`Wrong` if the access touches anything but the tensors' elements."""
        addresses = ptrs.data[np.broadcast_to(_data(mask), ptrs.data.shape).astype(bool)]
        if not addresses.size:
            return
        matrix = min(self.matrices, key=lambda each: _distance(each, addresses[0]))
        places = matrix.places(addresses)
        program = int(np.ravel_multi_index(builder.grid_idx[:2], (*self.grid, 1)[:2]))
        who = f"{line_of(self.file)}: program {self.called(program)} {does}"
        outside = places[~matrix.has(places)]
        if outside.size:
            cause = "its pointers are wrong, or its mask lets too much through"
            raise Wrong(f"{who} {matrix.called(outside[0])}, but {matrix!r}: {cause}.")
        if does == "loads":
            unknown = places[matrix.owner[places] < 0]
            if matrix.output and unknown.size:
                raise Wrong(f"{who} {matrix.called(unknown[0])}, which no program has stored.")
            return
        if not matrix.output:
            raise Wrong(f"{who} {matrix.called(places[0])}, which is an input.")
        before = self._stored[matrix.name]
        again = places[before[places] >= 0]
        if does == "stores" and again.size:
            raise Wrong(
                f"{who} {matrix.called(again[0])}, which program {self.called(before[again[0]])} "
                "has stored already."
            )
        before[places] = matrix.owner[places] = program

    def called(self, program: int) -> str:
        """Its number, or its pair of numbers."""
        pair = np.unravel_index(program, (*self.grid, 1)[:2])
        return str(int(pair[0]) if len(self.grid) == 1 else tuple(map(int, pair)))


def poison(dtype: np.dtype) -> Any:
    """What no result should have come from."""
    return dtype.type(-77 if dtype.kind == "i" else "nan")


def _data(mask: Any) -> np.ndarray:
    """A mask's values; of descriptors it is those alone."""
    return mask if isinstance(mask, np.ndarray) else mask.data


def _distance(matrix: Matrix, address: int) -> int:
    """Bytes from a storage to an address; 0 within."""
    begin = matrix.storage.data_ptr()
    end = begin + matrix.storage.nbytes - 1
    return max(begin - int(address), int(address) - end, 0)


def line_of(file: str, error: BaseException | None = None) -> str:
    """ "Line 20": where in the file an error was raised, or else where its innermost call is."""
    if error is not None:
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__)
                 if each.filename == file]  # fmt: skip
    else:
        frames = traceback.walk_stack(sys._getframe())
        lines = [line for frame, line in frames if frame.f_code.co_filename == file][:1]
    return f"Line {lines[-1]}" if lines else "A line"
