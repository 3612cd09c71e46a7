# SPDX-License-Identifier: Apache-2.0
"""The check of wording: what it finds, what it passes over, and that the tree has no finding."""

from __future__ import annotations

import pytest

from release import prose

GOOD = '''"""Reads pages of other machines."""
# Why: a comment may begin with any word.
NAME = "nobody"


def parse(text: str) -> None:
    """Return the rows; raises ValueError if a line is no row."""
'''


def test_plain_text_has_no_finding() -> None:
    assert prose.findings("a.py", GOOD) == []
    assert prose.findings("a.md", "Whatever stands in a document's line.\nThe daemon writes it.\n") == []


@pytest.mark.parametrize("opening", ["What", "Who", "Which", "How", "Of", "Where", "Whether"])
def test_a_docstring_begins_with_no_question(opening: str) -> None:
    (module,) = prose.findings("a.py", f'"""{opening} it is."""\n')
    assert (module.line, opening in module.reason) == (1, True)
    (function,) = prose.findings("a.py", f'def f():\n    """{opening} it is."""\n')
    assert function.line == 2
    (field,) = prose.findings("a.py", f'class A:\n    """A row."""\n    x: int\n    """{opening} it is."""\n')
    assert field.line == 4


@pytest.mark.parametrize(
    "word", ["whoever", "Nobody", "somebody", "anyone", "anew", "has its say", "had its say"]
)
def test_words_without_an_actor_are_found_in_every_kind_of_text(word: str) -> None:
    assert [one.line for one in prose.findings("a.py", f'"""A row.\n\n{word} asks."""\n')] == [3]
    assert [one.line for one in prose.findings("a.py", f"x = 1  # {word} asks\n")] == [1]
    assert [one.line for one in prose.findings("a.md", f"# Title\n\n{word} asks.\n")] == [3]
    assert [one.line for one in prose.findings("a.c", f"int x;\n/* Two\n * lines: {word} */\n")] == [3]


def test_strings_of_other_folders_are_data() -> None:
    assert prose.findings("tests/a.c", 'const char *a = "// nobody", b = \'"\'; /* fine */\n') == []
    assert len(prose.findings("tests/a.c", 'const char *a = "\\"// x"; // nobody\n')) == 1
    assert prose.findings("tests/a.py", 'x = "nobody asks"\n') == []


def test_messages_and_help_texts_of_the_product_are_checked() -> None:
    assert [one.line for one in prose.findings("limiter/a.py", '"""A row."""\nlog("nobody asks")\n')] == [2]
    assert [
        one.line for one in prose.findings("limiter/a.py", '"""A row."""\nlog(f"{x}: nobody asks")\n')
    ] == [2]
    assert [one.line for one in prose.findings("csrc/a.c", 'int x;\nlog("nobody asks");\n')] == [2]
    assert prose.findings("limiter/a.py", 'NAME = "nobody"\n') == []


def test_the_tree_has_no_finding() -> None:
    assert [str(one) for path in prose.files() for one in prose.read(path, prose.ROOT)] == []
