# SPDX-License-Identifier: Apache-2.0
"""The check of wording: what it finds, what it passes over, and that its baseline only shrinks."""

from __future__ import annotations

import json
from pathlib import Path

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


@pytest.mark.parametrize("word", ["whoever", "Nobody", "somebody", "anew", "has its say", "had its say"])
def test_words_without_an_actor_are_found_in_every_kind_of_text(word: str) -> None:
    assert [one.line for one in prose.findings("a.py", f'"""A row.\n\n{word} asks."""\n')] == [3]
    assert [one.line for one in prose.findings("a.py", f"x = 1  # {word} asks\n")] == [1]
    assert [one.line for one in prose.findings("a.md", f"# Title\n\n{word} asks.\n")] == [3]
    assert [one.line for one in prose.findings("a.c", f"int x;\n/* Two\n * lines: {word} */\n")] == [3]


def test_strings_of_c_are_no_comments() -> None:
    assert prose.findings("a.c", 'const char *a = "// nobody", b = \'"\'; /* fine */\n') == []
    assert len(prose.findings("a.c", 'const char *a = "\\"// x"; // nobody\n')) == 1


def test_an_allowance_only_shrinks() -> None:
    assert prose.lowered({"a.py": 3, "b.py": 1, "c.py": 2}, {"a.py": 1, "b.py": 5}) == {"a.py": 1, "b.py": 1}


def test_no_file_has_more_findings_than_it_may() -> None:
    assert [str(one) for one in prose.check(lower=False)] == []


def test_lowering_writes_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps(prose.allowed() | {"gone.py": 4}))
    monkeypatch.setattr(prose, "BASELINE", baseline)
    prose.check(lower=True)
    assert "gone.py" not in json.loads(baseline.read_text())
