"""Tensors that know which of their elements a kernel may touch, and what looks at each access.

The interpreter's loads and stores are looked at before they happen. So an access outside of the
tensors is told with its line and element, and never touches memory.
"""

import contextlib
import dataclasses
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder

from docs.exercises import Wrong
from tritemm.machine import interpreted

from . import advice

#: Elements before and after a tensor, and between its lines, which no kernel may touch.
GUARD, GAP = 64, 5
#: How a matrix may be stored, and what is said of it.
STORED = {"rows": "", "columns": "by columns", "apart": "as every second column of a matrix"}
#: What kernels call the strides.
STRIDES = {
    "A": ("stride_am", "stride_ak"), "B": ("stride_bk", "stride_bn"),
    "C": ("stride_cm", "stride_cn"), "P": ("stride_pm", "stride_pn"),
}  # fmt: skip
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
        if place < GUARD:
            return f"{self.name}, {GUARD - int(place)} elements before its first"
        indices, left = self.indices(place)
        between = ", between two elements" if left else ""
        return f"{self.name}{indices}{between}"

    def indices(self, place: int) -> tuple[list[int], int]:
        """Those of an element, which may not exist, and how far the place is behind it."""
        left, indices = int(place) - GUARD, [0] * len(self.shape)
        strides = self.tensor.stride()
        for axis in sorted(range(len(strides)), key=lambda each: -strides[each]):
            indices[axis], left = divmod(left, strides[axis])
        return indices, left

    def __repr__(self) -> str:
        if len(self.shape) == 1:
            return f"{self.name} ends at {self.name}[{self.shape[0] - 1}]"
        size = " x ".join(map(str, self.shape))
        strides, line = self.tensor.stride(), "column" if self.stored == "columns" else "row"
        return (
            f"{self.name} is {size}, stored {STORED[self.stored] or 'by rows'}: its strides are "
            f"{strides[0]} and {strides[1]}, with a gap after each {line}"
        )


def _strides(shape: tuple[int, ...], stored: str) -> tuple[int, ...]:
    if len(shape) == 1:
        return (1,)
    adjacent, step = {"rows": (1, 1), "columns": (0, 1), "apart": (1, 2)}[stored]
    pitch = -(-(shape[adjacent] * step + GAP) // LINE) * LINE
    return (pitch, step) if adjacent else (step, pitch)


@dataclasses.dataclass(frozen=True)
class Begin:
    """Row and column of an input at which a block begins, as a load gives them."""

    matrix: Matrix
    at: list[int]
    #: Whether a descriptor loads it, whose rows and columns are those of the matrix as stored.
    described: bool = False

    def outside(self) -> bool:
        """Whether the row or the column is none of the matrix."""
        shape = self.should(*self.matrix.shape).at
        return any(each >= size for each, size in zip(self.at, shape, strict=True))

    def should(self, row: int, column: int) -> "Begin":
        """The same, but at this row and column of the matrix."""
        turned = self.described and self.matrix.stored == "columns"
        return dataclasses.replace(self, at=[column, row] if turned else [row, column])

    def __str__(self) -> str:
        return str(self.at) if self.described else f"{self.matrix.name}{self.at}"


@dataclasses.dataclass
class Looker:
    """Looks at each access of a kernel, and lets its programs run in some order."""

    file: str
    matrices: Sequence[Matrix]
    grid: tuple[int, ...]
    #: Of a random order of the programs; 0: as they are numbered.
    seed: int
    #: The sizes, as in "n = 37 and BLOCK = 16".
    case: str
    #: What may be said of a program that touches what it shouldn't, or "".
    cause: "Callable[[Looker, int], str]" = lambda looker, program: ""

    def __post_init__(self) -> None:
        programs = [(x, y) for x in range(self.grid[0]) for y in range((*self.grid, 1)[1])]
        turns = random.Random(self.seed).sample(programs, len(programs))
        self._turn = dict(zip(programs, turns if self.seed else programs, strict=True))
        self._stored = {each.name: np.full_like(each.owner, -1) for each in self.matrices}
        #: By program and input, where the blocks begin that it loads.
        self.begins: dict[tuple[int, str], list[Begin]] = {}
        self._describing = False

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "set_grid_idx",
                 "create_descriptor_load")  # fmt: skip
        usual = {name: getattr(InterpreterBuilder, name) for name in names}

        def load(builder, ptrs, mask, other, *more, **named):
            if not self._describing:
                self.note(builder, ptrs.data)
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

        def load_block(builder, desc, indices, *more, **named):
            self.note(builder, desc.base.data, [int(each.data.item()) for each in indices])
            self._describing = True  # the load of pointers that it makes of this begins no block
            loaded = usual["create_descriptor_load"](builder, desc, indices, *more, **named)
            self._describing = False
            return loaded

        ours = dict(zip(names, (load, store, add, turn, load_block), strict=True))
        with mock.patch.multiple(InterpreterBuilder, **ours), self._single_truths():
            yield

    @contextlib.contextmanager
    def _single_truths(self) -> Iterator[None]:
        """`Wrong` if the file takes a block for a truth value, which the interpreter lets pass."""
        usual = interpreted._patch_tensor

        def patch(tensor, scope):
            usual(tensor, scope)
            truth = tensor.__bool__

            def single(value):
                caller = sys._getframe(1)
                if value.handle.data.size > 1 and caller.f_code.co_filename == self.file:
                    line = advice.Line(self.file, caller.f_lineno)
                    raise Wrong(f"{line_of(self.file)}: {line.truth()}")
                return truth(value)

            scope.set_attr(tensor, "__bool__", single)

        with mock.patch.object(interpreted, "_patch_tensor", patch):
            yield

    def note(self, builder: Any, addresses: np.ndarray, corner: list[int] | None = None) -> None:
        """Where a block begins, at an address or at the `corner` of a descriptor's load."""
        matrix = self.nearest(addresses.flat[0])
        if matrix.output or (corner is None and addresses.ndim != 2):
            return
        begin = Begin(matrix, corner or matrix.indices(matrix.places(addresses.flat[:1])[0])[0],
                      described=corner is not None)  # fmt: skip
        self.begins.setdefault((self.program(builder), matrix.name), []).append(begin)

    def nearest(self, address: int) -> Matrix:
        return min(self.matrices, key=lambda each: _distance(each, address))

    def program(self, builder: Any) -> int:
        return int(np.ravel_multi_index(builder.grid_idx[:2], (*self.grid, 1)[:2]))

    def look(self, builder: Any, does: str, ptrs: Any, mask: Any) -> None:
        """`Wrong` if the access touches anything but the tensors' elements."""
        addresses = ptrs.data[np.broadcast_to(_data(mask), ptrs.data.shape).astype(bool)]
        if not addresses.size:
            return
        matrix, program = self.nearest(addresses[0]), self.program(builder)
        places = matrix.places(addresses)
        who = f"{line_of(self.file)}, with {self.case}: program {self.called(program)} {does}"
        outside = places[~matrix.has(places)]
        if outside.size:
            cause = _moves(matrix, ptrs.data) or self.cause(self, program) or _mask(_data(mask))
            raise Wrong(f"{who} {matrix.called(outside[0])}, but {matrix!r}. {cause}")
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
                f"has stored already. {self.cause(self, program)}".rstrip()
            )
        before[places] = matrix.owner[places] = program

    def called(self, program: int) -> str:
        """Its number, or its pair of numbers."""
        pair = np.unravel_index(program, (*self.grid, 1)[:2])
        return str(int(pair[0]) if len(self.grid) == 1 else tuple(map(int, pair)))


def _moves(matrix: Matrix, addresses: np.ndarray) -> str:
    """How a block's pointers move by other strides than the matrix's; "" if they don't."""
    if addresses.ndim != 2 or len(matrix.shape) != 2:
        return ""
    said, strides = [], matrix.tensor.stride()
    for axis, (what, stride) in enumerate(zip(("row", "column"), strides, strict=True)):
        if addresses.shape[axis] == 1:
            continue
        first, second = (int(addresses.take(i, axis).flat[0]) for i in range(2))
        move = (second - first) // matrix.storage.element_size()
        if move not in (0, stride):  # 0 where all rows wrap to one
            name = STRIDES.get(matrix.name, ("the stride",) * 2)[axis]
            said.append(
                f"From one {what} of the block to the next the pointers move by {move} "
                f"element{'s' * (move != 1)}; {name} is {stride}."
            )
    return " ".join(said)


def _mask(mask: np.ndarray) -> str:
    """What may be wrong with the mask of an access, if its pointers are right."""
    if not mask.all():
        return "Its mask lets too much through, or its pointers are wrong."
    if mask.size == 1:
        return "It has no mask that keeps it from this."
    return "It has no mask, or one that is true everywhere; or its pointers are wrong."


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
