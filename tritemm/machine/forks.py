"""Locks that outlive a fork."""

from __future__ import annotations

import os
import threading


def lock(kind=threading.Lock):
    """A lock that is free in a child, whichever thread of its parent held it: there is none now.

    What it guards must be whole at any time, as a table is whose entries are added ready.
    """
    made = kind()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made._at_fork_reinit)
    return made
