"""CUDA sources on a CPU: compiled by g++ beside headers that stand for what only a GPU has."""

import ctypes
import functools
import subprocess
from pathlib import Path

from tests.harness import needs_nvcc

FOLDER = Path(__file__).parent


def compiler(folder, header, *flags):
    """`library(name, text, *flags)` compiles a .cu's text once; `header` precedes each."""
    include = needs_nvcc().root / "include"
    gcc = ["g++", "-std=c++17", "-w", "-fPIC", *flags, "-I", str(folder), "-I", str(include)]
    header = folder / header  # compiled ahead: most of what each source takes
    subprocess.run([*gcc, "-x", "c++-header", "-o", f"{header}.gch", str(header)], check=True)

    @functools.cache
    def library(name, text, *flags):
        file = folder / f"{name.replace('/', '_')}.cpp"
        file.write_text(text)
        made = file.with_suffix(".so")
        command = [*gcc, "-shared", *flags, "-include", str(header), "-o", str(made), str(file)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(made))

    return library
