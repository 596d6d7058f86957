"""Share a run of the tests out over the GPUs of a host: a pytest plugin, loaded before all others.

`make test-gpu GPUS=2` gives each worker of pytest-xdist one of them, in turn. It imports nothing
that looks for a GPU, since what is visible can't be changed after that.
"""

import os

#: How many GPUs, of those that are visible.
VARIABLE = "TRITEMM_TEST_GPUS"


def own(worker: str, visible: str | None, count: int) -> str:
    """CUDA_VISIBLE_DEVICES of a worker, `gw0`, `gw1` ...: one of the first `count` visible ones."""
    names = visible.split(",") if visible is not None else [str(i) for i in range(count)]
    return names[:count][int(worker.removeprefix("gw")) % len(names[:count])].strip()


_worker, _count = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get(VARIABLE) or 1)
if _worker and _count > 1:
    _visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = own(_worker, _visible, _count)
