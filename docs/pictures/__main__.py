"""`python -m docs.pictures [--check] [NAME ...]`: draws the pictures of docs/concepts/."""

from __future__ import annotations

import argparse
import sys

from . import FOLDER, PICTURES, stale, write


def main(arguments: list[str] | None = None) -> int:
    """0: drawn, or nothing has changed; 1: `--check` found something."""
    parser = argparse.ArgumentParser(description="Draw the pictures of docs/concepts/.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    parser.add_argument("names", nargs="*", metavar="NAME", help="all, unless given")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(PICTURES):
        parser.error(
            f"no picture is called {', '.join(sorted(unknown))}; {', '.join(PICTURES)} are"
        )
    root = FOLDER.parents[2]
    found = (stale if given.check else write)(tuple(given.names))
    for path in found:
        word = "stale" if given.check else "drawn" if path.exists() else "removed"
        print(f"{word}: {path.relative_to(root)}" + "; run `python -m docs.pictures`" * given.check)
    return int(given.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
