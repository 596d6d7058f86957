"""`python -m docs.types [--check]`: what the type table compiles to, into docs/types.json.

Takes some minutes: each entry is compiled in CUDA, in Triton and in Gluon, for sm_80 and sm_90.
"""

from __future__ import annotations

import argparse
import json
import sys

from . import record


def main() -> int:
    """0: written, or nothing has changed; 1: `--check` found something; 2: no compiler."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if stale")
    check = parser.parse_args().check
    try:
        new = record.record()
    except RuntimeError as error:  # `toolkit.Unavailable` among them
        print(error, file=sys.stderr)
        return 2
    if not check:
        record.DATA.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
        print(f"wrote {record.DATA.name}; now run `make docs`")
        return 0
    found = record.differences(record.load(), new)
    for line in found:
        print(f"{line}; run `python -m docs.types`")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
