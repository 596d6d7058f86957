"""Worker processes that compile kernels, whatever this process does with them.

Kernels decorated for Triton's interpreter cannot be compiled in the same process; and several
processes compile many kernels sooner. Workers touch no GPU. They have their own command line
instead of using `multiprocessing`, which would run the caller's main module again.

`compile_all` and `Compilers` fill Triton's disk cache: a worker takes the path of a real launch
with operands without data, on the problem's own architecture, so that the real launch finds the
kernel in the cache and takes milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..problem import Matrix, Problem
from ..rungs import find
from ..spec import Config
from .driver import standing_for
from .sass import tail

#: (kernel name, problem, config); `problem` is the user's, before `config.view`.
Item = tuple[str, Problem, Config]
#: Seconds after which the compilation of one kernel is aborted.
LIMIT = 180.0
#: Seconds after which an idle worker ends; the next item starts it again.
IDLE = 60.0
#: The most worker processes by default: each takes most of a gigabyte.
WORKERS = 16


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The outcome of one item: `error` is None, or why the config can't run.

    `shared` is bytes per program. `code` is the kernel's part that was requested: its number of
    "warps", "ptx" and "cubin".
    """

    error: str | None = None
    shared: int = 0
    code: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def compile_all(items: Sequence[Item]) -> list[Compiled]:
    """Compile every item and return each outcome, in order; a failure is an outcome too.

    There is one worker per core, up to `WORKERS`; starting one takes some seconds.
    """
    with Compilers() as compilers:
        futures = [compilers.submit(item) for item in items]
        return [future.result() for future in futures]


class Compilers(contextlib.AbstractContextManager):
    """Worker processes that start when there is work, until `close` or the end of this process.

    Items that are likely to be one kernel go to the same worker, which then compiles it once;
    others go to the worker with the least to do.
    """

    def __init__(self, workers: int | None = None):
        self._lanes = [_Lane() for _ in range(workers or min(WORKERS, _cores()))]
        self._owner: dict[tuple, _Lane] = {}
        self._process = os.getpid()
        atexit.register(self.close)

    def submit(self, item: Item, with_code: bool = False) -> Future[Compiled]:
        """The future result of one item; it holds no exception."""
        likely = likeness(*item)
        lane = self._owner.get(likely) or min(self._lanes, key=lambda lane: len(lane.waiting))
        self._owner[likely] = lane
        return lane.submit(item, with_code)

    def close(self) -> None:
        """End the workers; items not yet begun are dropped."""
        atexit.unregister(self.close)
        if self._process != os.getpid():  # in a fork they are the parent's
            return
        for lane in self._lanes:
            lane.close()

    def __exit__(self, *raised) -> None:
        self.close()


@functools.cache
def shared() -> Compilers:
    """The process's shared compilers; callers cancel what they no longer wait for."""
    return Compilers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.cache_clear)


def _cores() -> int:
    """The cores that this process may use, if the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def likeness(name: str, problem: Problem, config: Config) -> tuple:
    """Equal for items that Triton most likely compiles to one kernel."""
    view = config.view(problem)
    even = view.K % config.BLOCK_K == 0
    count = (view.batch - 1).bit_length() if view.groups else 0
    sizes = view.batched, view.wide, view.long, count
    return name, config, even, *sizes, _kind(dataclasses.astuple(view))


def _kind(value):
    """What a compiled kernel knows about an integer: whether it is 1, and whether 16 divides it."""
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return value == 1, value % 16 == 0, value >= 2**31
    return value


class _Lane:
    """One worker, and the items that wait for it."""

    def __init__(self):
        self.waiting: set[Future] = set()
        self.work: queue.SimpleQueue[tuple | None] = queue.SimpleQueue()
        self.worker = Worker()
        # Not an executor's: this process would wait for its work before ending.
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def submit(self, item: Item, with_code: bool) -> Future[Compiled]:
        assert self.thread.is_alive(), "the compilers were closed"
        future: Future[Compiled] = Future()
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        self.work.put((future, item, with_code))
        return future

    def _run(self) -> None:
        while True:
            try:
                work = self.work.get(timeout=IDLE)
            except queue.Empty:
                self.worker.close()
                continue
            if work is None:
                return
            future, item, with_code = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                made = self.worker.ask(compile_here, *item, with_code)
            except Exception as error:  # it did not start, or died on this item
                made = Compiled(str(error))
            future.set_result(made)

    def close(self) -> None:
        """Drop what was not begun, and abort what was."""
        for future in tuple(self.waiting):
            future.cancel()
        self.work.put(None)
        while self.thread.is_alive():  # it may be about to start the worker
            self.worker.kill()
            self.thread.join(0.1)
        self.worker.close()


#: What a worker runs. Modules come from this one's folder and the usual places, not from the
#: current directory, which `-c` puts first: a file called torch.py there would be executed.
_PROGRAM = """
import sys
from importlib import util
sys.path[:] = [{root!r}, *filter(None, sys.path)]
if util.find_spec({package!r}) is None:  # loaded from a path, by a name of its own
    spec = util.spec_from_file_location({package!r}, {init!r})
    sys.modules[{package!r}] = module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
from {module} import serve
serve({file})
"""


class Worker:
    """A process that calls functions, by pickle.

    It starts at the first call, which takes about three seconds, and again after it has ended.
    """

    process: subprocess.Popen | Any = None

    def _start(self) -> None:
        home = Path(__file__).resolve().parents[1]
        names = {"package": __name__.removesuffix(".compile.pool"), "module": __name__}
        paths = {"root": str(home.parent), "init": str(home / "__init__.py")}
        # One thread: the workers share the cores.
        env = {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (see close)
        self.connection, its = multiprocessing.Pipe()
        program = _PROGRAM.format(**paths, **names, file=its.fileno())
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                env=os.environ | env, pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                start_new_session=True,  # Ctrl-C is for the caller, who then closes the workers
            )  # fmt: skip

    def ask(self, function: Callable, *args):
        """The result of `function`, which must be in an importable module.

        Raises RuntimeError, with the reason, if the process doesn't start, dies during this call,
        or is ended after `LIMIT`.
        """
        started = self.process is not None
        if not started:
            self._start()
        try:
            started = started or self._answer()
            self.connection.send((function, args))
            return self._answer()
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                self.close()
                raise RuntimeError(f"the compiler took more than {LIMIT:g} s") from None
            status = self.process.wait()
            self.log.seek(0)
            said = f"status {status}: {tail(self.log.read())}"
            self.close()
            what = "compiler ended with" if started else "compiling worker did not start:"
            raise RuntimeError(f"the {what} {said}") from None

    def _answer(self):
        if not self.connection.poll(LIMIT):
            raise TimeoutError
        return self.connection.recv()

    def kill(self) -> None:
        """End the process, whatever it does; its caller gets an error."""
        if (process := self.process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.kill()
            self.process.wait()
            self.connection.close()
            self.log.close()
            self.process = None


# Inside a worker


def serve(file: int) -> None:
    """Report that this process has started, and answer calls until the caller is gone."""
    connection = Connection(file)
    connection.send(True)
    with contextlib.suppress(EOFError):
        while True:
            function, args = connection.recv()
            connection.send(function(*args))


def compile_here(name: str, problem: Problem, config: Config, with_code: bool = False) -> Compiled:
    """Compile one item in this process, where kernels are not interpreted."""
    try:
        kernel: Any = find(name)
        view = config.view(problem)
        if reason := kernel.why_not(view):
            return Compiled(reason)
        call = kernel.prepare(view, config, *operands(view))
        major, minor = view.device.capability
        with standing_for(10 * major + minor):
            made = kernel.fn.warmup(**call.args, **call.options, grid=call.grid)
    except Exception as error:  # the compiler may raise anything
        return Compiled(f"{type(error).__name__}: {tail(str(error))}")
    code = {"warps": made.metadata.num_warps, "ptx": made.asm["ptx"], "cubin": made.asm["cubin"]}
    shared, limit = made.metadata.shared, view.device.shared
    too_much = f"needs {shared} bytes of shared memory; {view.device.name} has {limit}"
    return Compiled(too_much if shared > limit else None, shared, code if with_code else {})


def operands(problem: Problem) -> tuple[torch.Tensor | float, ...]:
    """A, B, C and a launch's other inputs, without data: types, sizes, strides and alignments."""
    spec = problem.epilogue
    abc: list[torch.Tensor | float] = [
        _meta(m, problem.batches) for m in (problem.a, problem.b, problem.c)
    ]
    if problem.groups:
        abc.append(torch.empty(problem.batch, dtype=torch.int32, device="meta"))
    if problem.scales:
        abc += [_meta(m, (1, problem.batch)) for m in (problem.scales.a, problem.scales.b)]
    if spec.bias:
        length = problem.M if spec.along == "m" else problem.N
        length *= problem.batch if problem.groups else 1
        abc.append(torch.empty(length, dtype=spec.bias, device="meta"))
    if spec.residual:
        abc.append(_meta(spec.residual, problem.batches))
    abc += [2.0] * (spec.alpha + spec.beta)  # any factor but 1
    if "flag_ptr" in problem.arguments:
        abc.append(torch.empty(1, dtype=torch.int32, device="meta"))
    return tuple(abc)


def _meta(matrix: Matrix, batches: tuple[int, int]) -> torch.Tensor:
    """[*batches, rows, cols]; [rows, cols] if there is one batch."""
    sizes: tuple[int, ...] = (matrix.rows, matrix.cols)
    strides = matrix.strides[2:]
    if batches[0] * batches[1] > 1:
        sizes, strides = (*batches, *sizes), matrix.strides
    storage = torch.empty(0, dtype=matrix.dtype, device="meta")
    return storage.as_strided(sizes, strides, 0 if matrix.aligned else 1)
