"""What tests of the CUDA side need: a compiler, a GPU, or a stand-in for a compiled rung."""

import types

import pytest
import torch

from cuda_reference import loader
from cuda_reference.kernel import Call
from tests.dispatch.choosing import H200
from tests.harness import needs_nvcc
from tritemm.problem import Device


@pytest.fixture
def nvcc():
    """Skips where there is none."""
    return needs_nvcc()


@pytest.fixture
def loads():
    """Skips where no .cu can be compiled and loaded."""
    if reason := loader.unavailable():
        pytest.skip(reason)


class Library:
    """Stands for a loaded rung: keeps what `launch` was called with, and returns `answer`."""

    def __init__(self):
        self.calls, self.answer = [], None

    def launch(self, pointer):
        self.calls.append(Call.from_buffer_copy(pointer._obj))
        return self.answer


@pytest.fixture
def library(monkeypatch):
    """In place of every rung's; the stream is number 7."""
    library = Library()
    monkeypatch.setattr(loader, "library", lambda name, arch: library)
    stream = types.SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return library


@pytest.fixture
def as_h200(library, monkeypatch):
    """Tensors on the CPU pass as an H200's, and no kernel runs; the calls of the library."""
    monkeypatch.setattr(Device, "of", staticmethod(lambda device: H200))
    return library.calls
