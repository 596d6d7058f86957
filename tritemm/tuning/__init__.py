"""How a kernel is chosen: the cost model, its constants, and what a user's own tuning found.

`export` and `load` carry what `tritemm.tune` found from machine to machine.
"""

from __future__ import annotations

from os import PathLike

__all__ = ["export", "load"]


def export(path: str | PathLike, device=None) -> int:
    """Write all that `tritemm.tune` found on this GPU, or on `device`, to `path`.

    Returns how many problems it holds. The file is JSON; `load` reads it on another machine.
    """
    from . import user  # above the dispatcher, which is above this package

    return user.export(path, device)


def load(path: str | PathLike) -> int:
    """Add what another machine exported to this user's cache; it replaces what is there.

    Returns how many problems were added. They count for GPUs of the name in the file.
    Raises ValueError if `path` is no such file.
    """
    from . import user

    return user.load(path)
