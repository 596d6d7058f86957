"""Code in pages: taken from the sources, and an error where a marker is wrong."""

import pytest

from docs import excerpt

pytestmark = [pytest.mark.host, pytest.mark.once]

SOURCE = """def f(a):
    if a:
        return 1
    return 2


def g(a):
    return 2
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    (tmp_path / "some.py").write_text(SOURCE)
    monkeypatch.setattr(excerpt, "ROOT", tmp_path)


@pytest.mark.parametrize(
    ("marker", "code"),
    [
        ("some.py | if a: | return 1", "if a:\n    return 1"),
        ("some.py | def g", "def g(a):"),
        ("some.py | return 2#2", "return 2"),
        ("some.py | def f | return 2", "def f(a):\n    if a:\n        return 1\n    return 2"),
    ],
)
def test_lines_are_taken_and_dedented(source, marker, code):
    text = f"Before.\n\n<!-- code: {marker} -->\n\nAfter.\n"
    filled = excerpt.fill(text, "a page")
    assert filled == f"Before.\n\n<!-- code: {marker} -->\n```python\n{code}\n```\n\nAfter.\n"
    assert excerpt.fill(filled, "a page") == filled
    old = filled.replace(f"\n{code}\n", "\nold\n\ncode\n")
    assert old != filled and excerpt.fill(old, "a page") == filled


def test_markers_one_below_the_other_and_other_blocks(source):
    text = "<!-- code: some.py | def g -->\n<!-- code: some.py | def f -->\n\n```python\nx\n```\n"
    filled = excerpt.fill(text, "a page")
    assert filled.count("```") == 6 and filled.endswith("def f(a):\n```\n\n```python\nx\n```\n")
    assert excerpt.fill(filled, "a page") == filled


def test_what_is_opened_is_closed(source, tmp_path):
    (tmp_path / "some.cu").write_text("void f() {\n  for (;;) {\n    g();\n  }\n}\n\nint h;\n")
    for marker, code in (
        ("some.cu | void f | g()", "void f() {\n  for (;;) {\n    g();\n  }\n}"),
        ("some.cu | for | g()", "for (;;) {\n  g();\n}"),
        ("some.cu | g()", "g();"),
    ):
        assert f"\n{code}\n```" in excerpt.fill(f"<!-- code: {marker} -->\n", "a page")


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("none.py | x", "a page: there is no file none.py"),
        ("some.py | def h", "a page: some.py has 0 lines with 'def h'"),
        ("some.py | return 2", "a page: some.py has 2 lines with 'return 2'; write return 2#1"),
        ("some.py | return 2#3", "a page: some.py has 2 lines with 'return 2'"),
        ("some.py | def g | return 1", "no line with 'return 1' after 'def g'"),
        ("some.py", "a page: a marker is PATH | FIRST | LAST"),
    ],
)
def test_an_error_names_page_and_text(source, marker, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        excerpt.fill(f"<!-- code: {marker} -->\n", "a page")
