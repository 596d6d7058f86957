"""Locks that survive a fork."""

from __future__ import annotations

import os
import threading


def lock(kind=threading.Lock):
    """A lock that is free in a child, whichever of its parent's threads held it.

    What it guards must be consistent at any time, like a table whose entries are added complete.
    """
    made = kind()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made._at_fork_reinit)
    return made
