"""Worker processes in which kernels are compiled, whatever this process does with them.

Kernels that were decorated for Triton's interpreter cannot be compiled in the same process; and
many are compiled sooner by several. Workers touch no GPU. They are processes of their own command
line, not of `multiprocessing`, which would run the caller's main module again.

`compile_all` and `Compilers` fill Triton's disk cache: a worker takes the path of a real launch
with operands that have no data, on the problem's own architecture, so that what it leaves in the
cache is what the real launch looks for: that one then takes milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import torch

from ..problem import Matrix, Problem
from ..rungs import find
from ..spec import Config
from .driver import standing_for
from .sass import tail

#: (kernel name, problem, config); `problem` is the user's, before `config.view`.
Item = tuple[str, Problem, Config]
#: Seconds after which the compiler of one kernel is ended.
LIMIT = 180.0
#: Seconds for which `shared` workers remain after their last user.
IDLE = 60.0
#: Worker processes at most, unless asked: each takes most of a gigabyte.
WORKERS = 16


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What became of one item: `error` is None, or why the config can't run.

    `shared` is bytes per program; `seconds` is the worker's time, little where the cache had it.
    """

    name: str
    problem: Problem
    config: Config
    shared: int = 0
    seconds: float = 0.0
    error: str | None = None


def compile_all(
    items: Sequence[Item],
    workers: int | None = None,
    progress: Callable[[Compiled], None] = lambda result: None,
) -> list[Compiled]:
    """Compile every item and say what became of each, in order; a failure is a result.

    `workers` is the number of processes, by default one per core up to `WORKERS`; to start one
    takes some seconds. `progress` is called in this thread, in the order of `items`.
    """
    with Compilers(workers) as compilers:
        results = []
        for future in [compilers.submit(item) for item in items]:
            results.append(future.result())
            progress(results[-1])
    return results


class Compilers:
    """Worker processes that live until `close`, the end of a `with`, or that of this process.

    Items that are likely to be one kernel go to one worker, which then compiles it once; others go
    to the worker with the least to do.
    """

    def __init__(self, workers: int | None = None, limit: float = LIMIT):
        count = workers or min(WORKERS, _cores())
        self._lanes = [_Lane(limit) for _ in range(count)]
        self._owner: dict[tuple, _Lane] = {}
        self._closed = False
        atexit.register(self.close)

    def submit(self, item: Item) -> Future[Compiled]:
        """The future result of one item; it holds no exception."""
        assert not self._closed
        likely = likeness(*item)
        lane = self._owner.get(likely) or min(self._lanes, key=lambda lane: len(lane.waiting))
        self._owner[likely] = lane
        return lane.submit(item)

    def close(self) -> None:
        """End the workers; what was not begun is dropped."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            for lane in self._lanes:
                lane.close()

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *raised) -> None:
        self.close()


_SHARING = threading.Lock()
_kept: Compilers | None = None
_users = 0
_closing: threading.Timer | None = None


@contextlib.contextmanager
def shared() -> Iterator[Compilers]:
    """Those of this process, which remain for `IDLE` seconds for who needs some next.

    Cancel what you no longer wait for.
    """
    global _kept, _users, _closing
    with _SHARING:
        if _closing:
            _closing.cancel()
        _kept = _kept or Compilers()
        _users += 1
    try:
        yield _kept
    finally:
        with _SHARING:
            _users -= 1
            _closing = threading.Timer(IDLE, _close_kept)
            _closing.daemon = True
            _closing.start()


def _close_kept() -> None:
    global _kept
    with _SHARING:
        if _kept and not _users:
            _kept.close()
            _kept = None


def _cores() -> int:
    """Those that this process may use, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def likeness(name: str, problem: Problem, config: Config) -> tuple:
    """Equal for items that Triton compiles to one kernel, as far as arguments decide.

    Of an integer argument a compiled kernel knows whether it is 1 and whether 16 divides it.
    """
    view = config.view(problem)
    sizes = _integers(dataclasses.astuple(view))
    kinds = [(number == 1, number % 16 == 0, number >= 2**31) for number in sizes]
    types = tuple(matrix.dtype for matrix in (view.a, view.b, view.c))
    aligned = tuple(matrix.aligned for matrix in (view.a, view.b, view.c))
    even = view.K % config.BLOCK_K == 0
    batched = view.batch > 1
    far = view.wide, view.long
    return (name, config, *kinds, *types, *aligned, even, batched, *far, view.accumulate)


def _integers(values) -> Iterator[int]:
    for value in values:
        if isinstance(value, tuple):
            yield from _integers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield value


class _Lane:
    """One worker process, started when there is work and again if the compiler takes it down."""

    def __init__(self, limit: float):
        self.limit = limit
        self.waiting: set[Future] = set()
        self.items: queue.SimpleQueue[tuple[Future, Item] | None] = queue.SimpleQueue()
        # No executor's, whose work is waited for when this process ends.
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.worker: Worker | None = None
        self.closed = False
        self.lock = threading.Lock()

    def submit(self, item: Item) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        self.waiting.add(future)
        future.add_done_callback(self.waiting.discard)
        self.items.put((future, item))
        if self.thread.ident is None:
            self.thread.start()
        return future

    def _run(self) -> None:
        while (work := self.items.get()) is not None:
            future, item = work
            if future.set_running_or_notify_cancel():
                future.set_result(self._compile(item))

    def _compile(self, item: Item) -> Compiled:
        try:
            with self.lock:
                if self.closed:
                    raise Ended("the compiler was ended before it began")
                if self.worker is None:
                    self.worker = Worker()
            return self.worker.ask(compile_here, *item, limit=self.limit)
        except Exception as error:  # it did not start, or ended over this item
            with self.lock:
                if self.worker is not None:
                    self.worker.close()
                    self.worker = None
            return Compiled(*item, error=str(error))

    def close(self) -> None:
        """Drop what was not begun, and end what was."""
        for future in tuple(self.waiting):
            future.cancel()
        with self.lock:
            self.closed = True
            if self.worker is not None:
                self.worker.kill()
        self.items.put(None)
        if self.thread.ident is not None:
            self.thread.join()
        if self.worker is not None:
            self.worker.close()
            self.worker = None


class Ended(RuntimeError):
    """The process ended over what it was asked, or was ended for taking too long; it says why."""


#: What a worker runs. Modules come from where this one does and from the usual places, not from
#: the current directory, which `-c` puts first: a file called torch.py there would be executed.
_PROGRAM = """
import sys
sys.path[:] = [{root!r}, *filter(None, sys.path)]
from {module} import serve
serve()
"""


class Worker:
    """A process that calls functions; pickled calls go in, pickled results come out.

    It takes about three seconds to start, which the first call waits for.
    """

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        # One thread: the workers together have the cores.
        env = {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (see close)
        self.started = False
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(root=root, module=__name__)],
            env=os.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            start_new_session=True,  # Ctrl-C is for the caller, who then closes the workers
        )  # fmt: skip

    def ask(self, function: Callable, *args, limit: float | None = None):
        """What `function`, of a module that can be imported, returns; `limit` is in seconds.

        Raises RuntimeError if the process does not start, and Ended if it ends over this call or
        is ended after `limit`. The worker is closed then.
        """
        late = threading.Event()
        timer = threading.Timer(limit or 0, lambda: (late.set(), self.process.kill()))
        timer.daemon = True
        if limit:
            timer.start()
        try:
            pickle.dump((function, args), self.process.stdin)
            self.process.stdin.flush()
            self.started = self.started or pickle.load(self.process.stdout)
            return pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise self._ended(limit if late.is_set() else None) from None
        finally:
            timer.cancel()

    def _ended(self, limit: float | None) -> RuntimeError:
        status = self.process.wait()
        self.log.seek(0)
        said = tail(self.log.read())
        self.close()
        if limit:
            return Ended(f"the compiler took more than {limit:g} s")
        if self.started:
            return Ended(f"the compiler ended with status {status}: {said}")
        return RuntimeError(f"the compiling worker did not start: status {status}: {said}")

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()

    def close(self) -> None:
        self.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()


_IDLE: list[Worker] = []


def take() -> Worker:
    """A worker that is idle, or a new one; give it back by `keep`, or close it."""
    try:
        return _IDLE.pop()
    except IndexError:
        return Worker()


def keep(worker: Worker) -> None:
    """The worker is idle: it stays for whoever takes one next, to the end of this process."""
    _IDLE.append(worker)


@atexit.register
def close_idle() -> None:
    """Have the next one who takes a worker start it, in the environment as it is then."""
    while _IDLE:
        _IDLE.pop().close()


# Inside a worker


def serve() -> None:
    """Answer calls until standard input ends; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pickle.dump(True, answers)  # started
    while True:
        try:
            function, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(function(*args), answers)
        answers.flush()


def compile_here(name: str, problem: Problem, config: Config) -> Compiled:
    """Compile one item in this process, where kernels are not interpreted."""
    begin = time.perf_counter()
    shared, error = 0, None
    try:
        kernel, view = find(name), config.view(problem)
        error = kernel.why_not(view)
        if error is None:
            call = kernel.prepare(view, config, *operands(view))
            major, minor = view.device.capability
            with standing_for(10 * major + minor):
                code = kernel.fn.warmup(**call.args, **call.options, grid=call.grid)
            shared, limit = code.metadata.shared, view.device.shared
            if shared > limit:
                error = f"needs {shared} bytes of shared memory; {view.device.name} has {limit}"
    except Exception as raised:  # the compiler raises whatever it likes
        error = f"{type(raised).__name__}: {tail(str(raised))}"
    return Compiled(name, problem, config, shared, time.perf_counter() - begin, error)


def operands(problem: Problem) -> tuple[torch.Tensor | float, ...]:
    """A, B, C and the epilogue's inputs, without data: types, sizes, strides and alignments."""
    spec = problem.epilogue
    abc = [_meta(m, problem.batches) for m in (problem.a, problem.b, problem.c)]
    if spec.bias:
        length = problem.M if spec.along == "m" else problem.N
        abc.append(torch.empty(length, dtype=spec.bias, device="meta"))
    if spec.residual:
        abc.append(_meta(spec.residual, problem.batches))
    abc += [2.0] * (spec.alpha + spec.beta)  # any factor but 1
    return tuple(abc)


def _meta(matrix: Matrix, batches: tuple[int, int]) -> torch.Tensor:
    """[*batches, rows, cols]; [rows, cols] where there is one batch."""
    sizes, strides = (matrix.rows, matrix.cols), matrix.strides[2:]
    if batches[0] * batches[1] > 1:
        sizes, strides = (*batches, *sizes), matrix.strides
    offset = 0 if matrix.aligned else 1
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    storage = torch.empty(offset + last + 1, dtype=matrix.dtype, device="meta")
    return storage.as_strided(sizes, strides, offset)
