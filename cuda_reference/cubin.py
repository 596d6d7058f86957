"""Code of any .cu, with no GPU: PTX and a cubin by nvcc, read by cuobjdump."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import triton

from tritemm.compile.sass import count_instructions, count_of, parse_usage, run_tool

from . import progress, source, toolkit

FLAGS = toolkit.COMMON + toolkit.FLAGS
FEW_N = (*FLAGS, "-DFEW_N")
#: What is made, a cubin, and what stays of the steps to it: the PTX.
_STEPS = ("-cubin", "--keep")


@dataclasses.dataclass(frozen=True)
class Function:
    """One kernel of a cubin. Counts are of instructions in the binary, not of executions.

    `registers` and `stack` (bytes; spills are a part of it) are per thread, `shared` (bytes that
    the compiler knows of, so not those asked for at the launch) per block. `mix` and `variants`
    are as in `tritemm.compile.asm.Code`.
    """

    name: str
    registers: int
    stack: int
    shared: int
    mix: dict[str, int]
    variants: dict[str, int]

    def count(self, mnemonic: str) -> int:
        """Instructions of a base mnemonic (HMMA), or of a longer one (HGMMA.64x256x16)."""
        return count_of(mnemonic, self.mix, self.variants)


@dataclasses.dataclass(frozen=True)
class Cubin:
    """What one .cu compiled to for one architecture ("80", "90a"), and what nvcc said."""

    name: str
    arch: str
    file: Path
    warnings: str

    @functools.cached_property
    def functions(self) -> tuple[Function, ...]:
        return _functions(self.sass, run_tool("cuobjdump", "-res-usage", str(self.file)))

    @functools.cached_property
    def sass(self) -> str:
        """Its disassembly, in the cache too: cuobjdump takes nearly half a second to start."""
        kept = self.file.with_suffix(f".{triton.__version__}.sass.gz")  # Triton brings cuobjdump
        if kept.exists():
            return gzip.decompress(kept.read_bytes()).decode()
        text = run_tool("cuobjdump", "-sass", str(self.file))
        toolkit.put(kept, gzip.compress(text.encode(), compresslevel=1))
        return text


def compile_cubin(name: str, sm: int | str, flags: Sequence[str] = FLAGS) -> Cubin:
    """Compile `name`.cu for `sm`: 80, 90, "90a" or "sm_90a"; from the cache if it is there.

    `flags` are nvcc's. Of the tables of WGMMA, `FEW_N` is a part: an instruction for each N takes
    most of a minute in all.

    Raises:
        ValueError: there is no such source, or its signs don't name the architecture.
        Unavailable: there is no nvcc.
        RuntimeError: it does not compile; the message holds nvcc's.

    Example:
        >>> from cuda_reference.cubin import compile_cubin
        >>> code = compile_cubin("mma_base", 80)
        >>> min(function.count("HMMA") for function in code.functions) > 0
        True
    """
    arch = architecture(sm)
    made = _made(name, arch, flags)
    return Cubin(name, arch, made, made.with_suffix(".log").read_text())


def compile_ptx(name: str, sm: int | str, flags: Sequence[str] = FLAGS) -> str:
    """The PTX on the way to `compile_cubin`'s machine code; arguments and errors are the same."""
    return _made(name, architecture(sm), flags).with_suffix(".ptx").read_text()


def _made(name: str, arch: str, flags: Sequence[str]) -> Path:
    """The cubin of `name`; beside it .ptx, and .log with what nvcc said. From the cache."""
    made = _file(name, arch, flags)
    if arch not in source.architectures(name):
        known = " and ".join(f"sm_{arch}" for arch in source.architectures(name))
        raise ValueError(f"{name} is for {known}, as its signs say, not for sm_{arch}")
    if not made.exists():
        with toolkit.locked(made):
            if not made.exists():
                _compile(name, arch, flags, made)
    return made


def _file(name: str, arch: str, flags: Sequence[str] = FLAGS) -> Path:
    return toolkit.cached(source.path_of(name), arch, ".cubin", (*flags, *_STEPS))


def architecture(sm: int | str) -> str:
    """ "90a" of 90, "90", "90a" and "sm_90a"; ValueError if no such architecture is possible."""
    arch = str(sm).removeprefix("sm_")
    arch = "90a" if arch == "90" else arch
    if arch not in ("80", "90a"):
        raise ValueError(f"architecture {sm!r} is unknown; one of 80, 90a")
    return arch


def compile_all(
    names: Sequence[str], sms: Sequence[str], jobs: int | None = None
) -> dict[str, str]:
    """Compile every source for those of the architectures that its signs name.

    Shows progress. Returns what failed: each "NAME for sm_XX" and its error message.
    """
    tasks = {
        f"{name} for sm_{arch}": functools.partial(compile_cubin, name, arch)
        for name in source.largest_first(names)
        for arch in source.architectures(name)
        if arch in sms and not _file(name, arch).exists()
    }
    return progress.in_parallel("compiling", tasks, jobs)


def _compile(name: str, arch: str, flags: Sequence[str], made: Path) -> None:
    nvcc, path = toolkit.nvcc(), source.path_of(name)
    with tempfile.TemporaryDirectory(prefix=made.stem + "-", dir=made.parent) as folder:
        built = Path(folder, made.name)
        options = [*flags, toolkit.gencode(arch), *_STEPS, "--keep-dir", folder]
        includes = ["-I", str(path.parent), "-I", str(source.INCLUDE)]
        command = [str(nvcc.path), *options, *includes, "-o", str(built), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        said = (done.stdout + done.stderr).strip()
        if done.returncode:
            raise RuntimeError(f"{name} does not compile for sm_{arch}: {said[-4000:]}")
        made.with_suffix(".log").write_text(said)
        [ptx] = Path(folder).glob("*.ptx")
        os.replace(ptx, made.with_suffix(".ptx"))
        os.replace(built, made)  # last: what has a cubin is complete


def _functions(sass: str, usage: str) -> tuple[Function, ...]:
    """The kernels of a cubin, from what cuobjdump prints of its code and of its resources."""
    codes = _sections(r"^\s*Function : (\S+)\s*$", sass)
    resources = _sections(r"^\s*Function (\S+):\s*$", usage)
    names = _demangle(list(codes))
    functions = []
    for mangled, code in codes.items():
        registers, stack = parse_usage(resources[mangled])
        shared = re.search(r"\bSHARED:(\d+)", resources[mangled])
        functions.append(
            Function(
                names[mangled], registers, stack, int(shared.group(1)), *count_instructions(code)
            )
        )
    return tuple(sorted(functions, key=lambda function: function.name))


def _sections(header: str, text: str) -> dict[str, str]:
    """What follows each line that matches `header`, by the header's first group."""
    _, *parts = re.split(header, text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _demangle(names: list[str]) -> dict[str, str]:
    """Each mangled name and what it was in C++; as it is where there is no c++filt."""
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if tool is None:
        return {name: name for name in names}
    done = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True)
    return dict(zip(names, map(_short, done.stdout.splitlines()), strict=True))


def _short(name: str) -> str:
    """A function's name and template arguments, without its return type and parameters."""
    name = name.replace("(bool)0", "false").replace("(bool)1", "true")  # as c++filt writes them
    depth = 0
    for at in range(len(name) - 1, -1, -1):  # the last parenthesis at depth 0 opens the parameters
        depth += (name[at] == ")") - (name[at] == "(")
        if name[at] == "(" and depth == 0:
            name = name[:at]
            break
    return name.removeprefix("void ")
