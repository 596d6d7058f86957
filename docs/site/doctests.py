"""For mkdocstrings: the examples in docstrings, `>>> ...`, as code wherever they stand."""

import re

import griffe

#: Prompts and what they show, up to a blank line; not yet in an "Example:" section or a block.
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences the examples that stand at the margin of a docstring."""

    def on_instance(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
