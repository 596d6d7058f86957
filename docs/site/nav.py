"""Patterns in the `nav` of mkdocs.yml: a page in a named folder is found by itself."""

from __future__ import annotations

import re


def expand(items: list, pages: list[str]) -> list:
    """The nav with each pattern replaced by the pages that match it and stand nowhere else."""
    named = set(leaves(items))

    def walk(items: list) -> list:
        found = []
        for item in items:
            if isinstance(item, dict):
                ((title, inner),) = item.items()
                inner = walk(inner if isinstance(inner, list) else [inner])
                whole = inner[0] if inner == list(item.values()) else inner
                found += [{title: whole}] if inner else []
            elif "*" in item:
                pattern = re.compile(re.escape(item).replace(r"\*", "[^/]*"))
                found += sorted(p for p in pages if pattern.fullmatch(p) and p not in named)
            else:
                found += [item] if item in pages else []
        return found

    return walk(items)


def leaves(items: list) -> list[str]:
    """Every path that the nav names."""
    found = []
    for item in items:
        inner = next(iter(item.values())) if isinstance(item, dict) else item
        found += leaves(inner) if isinstance(inner, list) else [inner]
    return found
