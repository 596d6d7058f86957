"""What tritemm needs from a machine, checked before the rest of the package is imported.

This module imports nothing that may be missing.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys

#: Package -> its name, its oldest release, and how to get a newer one; docs/supported.md has the
#: reasons. Triton comes first: checking it is fastest.
_NEEDED = {
    "triton": (
        "Triton",
        (3, 6),
        "pip install --upgrade torch triton (a torch with CUDA pins the Triton it was built with)",
    ),
    "torch": ("PyTorch", (2, 11), "pip install --upgrade torch"),
}
#: `sys.platform` of systems that Triton has no release for.
_SYSTEMS = {
    "darwin": "there is no Triton for macOS: use Linux, in a container for instance",
    "win32": "there is no Triton for Windows: use Linux, in WSL 2 for instance",
}


@functools.cache
def why_not() -> str | None:
    """What is missing here, the limit and the fix, in one sentence; None if nothing is."""
    return next(filter(None, map(_why_not, _NEEDED)), None)


def _why_not(package: str) -> str | None:
    name, oldest, fix = _NEEDED[package]
    needs = f"tritemm needs {name} {'.'.join(map(str, oldest))} or newer"
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            return f"{needs}, and {package} can't be imported here: {error}"
        if package == "triton" and sys.platform in _SYSTEMS:
            return f"{needs}, and {_SYSTEMS[sys.platform]}"
        return f"{needs}, which is not installed: {fix}"
    except (ImportError, OSError) as error:  # such as a shared library's
        return f"{needs}, and {package} can't be imported here: {error}"
    version = getattr(found, "__version__", None)
    if version is None:  # a file of that name in the current folder, or the folder
        place = found.__file__ or next(iter(found.__path__))
        return f"{needs}, and {place} is imported instead: start Python in another folder"
    numbers = re.match(r"(\d+)\.(\d+)", str(version))
    if numbers and tuple(map(int, numbers.groups())) < oldest:
        return f"{needs}, and {version} is installed: {fix}"
    return None
