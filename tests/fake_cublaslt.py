"""A cuBLASLt on the CPU, behind C's calling convention: it reads descriptors and memory as told."""

import ctypes

import torch

from perf import cublaslt

DTYPES = {number: dtype for dtype, number in cublaslt.TYPES.items()}
SUCCESS, INVALID, UNSUPPORTED = 0, 7, 15
NAMES = {
    INVALID: ctypes.create_string_buffer(b"CUBLAS_STATUS_INVALID_VALUE"),
    UNSUPPORTED: ctypes.create_string_buffer(b"CUBLAS_STATUS_NOT_SUPPORTED"),
}


class FakeLibrary:
    """Its functions are callbacks of the types that cublasLt.h declares.

    The heuristic lists `count` algorithms, of which those in `broken` can't run, and that numbered
    `wrong` forgets the last term of each sum. `alive` are the descriptors by address, `launched`
    the algorithms.
    """

    def __init__(self, count=3, broken=(), wrong=None):
        self.count, self.broken, self.wrong = count, broken, wrong
        self.alive, self.launched, self.streams = {}, [], []
        self.named, self.asked = 0x7F0000000000, []
        for name, arguments in cublaslt.SIGNATURES.items():
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)
            setattr(self, name, prototype(self._function(name.removeprefix("cublasLt"))))
        names = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)
        self.cublasLtGetStatusName = names(lambda status: ctypes.addressof(NAMES[status]))

    def _function(self, name):
        for end, function in (("SetAttribute", self._set), ("Destroy", self._destroy)):
            if name.endswith(end):
                return function
        if name.endswith("Create"):
            return lambda out, *values: self._create(out, values)
        return {"MatmulAlgoGetHeuristic": self._heuristic, "Matmul": self._matmul}[name]

    def _create(self, out, values):
        self.named += 0x100  # an address that 32 bits don't hold
        out[0] = self.named
        self.alive[self.named] = {"made": values}
        return SUCCESS

    def _destroy(self, descriptor):
        del self.alive[descriptor]
        return SUCCESS

    def _set(self, descriptor, attribute, value, size):
        self.alive[descriptor][attribute] = ctypes.string_at(value, size)
        return SUCCESS

    def _heuristic(self, handle, operation, a, b, c, d, preference, most, listed, found):
        assert c == d and handle in self.alive
        told = self.alive[preference]
        self.asked.append({key: value for key, value in told.items() if key != "made"})
        if told[cublaslt.MAX_WORKSPACE] != (64 << 20).to_bytes(8, "little"):
            return UNSUPPORTED
        found[0] = min(most, self.count)
        for index in range(found[0]):
            listed[index].algorithm.data[7] = index  # the last word: all of it must come back
        return SUCCESS

    def _matmul(self, handle, operation, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, *rest):
        algorithm, workspace, size, stream = rest
        index = algorithm[0].data[7]
        if index in self.broken:
            return UNSUPPORTED
        assert handle in self.alive and workspace and size == 64 << 20
        assert (c, of_c) == (d, of_d)
        assert ctypes.c_float.from_address(alpha).value == 1
        assert ctypes.c_float.from_address(beta).value == 0
        told = self.alive[operation]
        turn_a, turn_b = (int.from_bytes(told[key], "little") for key in (3, 4))
        try:
            first, second, out = (self._read(*each) for each in ((a, of_a), (b, of_b), (d, of_d)))
        except ValueError:
            return INVALID
        first, second = first.mT if turn_a else first, second.mT if turn_b else second
        if self.wrong == index:
            first, second = first[..., :-1], second[..., :-1, :]
        try:
            out.copy_(first.double() @ second.double())
        except RuntimeError:
            return INVALID
        self.launched.append(index)
        self.streams.append(stream)
        return SUCCESS

    def _read(self, address, descriptor):
        """A matrix, or a batch, by columns."""
        told = self.alive[descriptor]
        number, rows, cols, ld = told["made"]
        if ld < rows:
            raise ValueError("columns overlap")
        dtype = DTYPES[number]
        count = int.from_bytes(told.get(5, b"\1"), "little")
        step = int.from_bytes(told.get(6, b"\0"), "little", signed=True)
        elements = (count - 1) * step + (cols - 1) * ld + rows
        memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(
            (count, rows, cols), (step, 1, ld)
        )  # fmt: skip
