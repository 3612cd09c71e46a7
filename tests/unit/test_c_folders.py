# SPDX-License-Identifier: Apache-2.0
"""The folders of the library's C have an order: headers include none of a later one (csrc/Makefile)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parent.parent.parent / "csrc"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ELSEWHERE = {"container", "node", "path", "sim"}
"""Folders that are no part of the library."""


def folders() -> list[str]:
    found = re.search(r"^FOLDERS = (.+)$", (CSRC / "Makefile").read_text(), re.MULTILINE)
    assert found
    return found[1].split()


def reached(header: str, seen: set[str]) -> set[str]:
    """Return all that including a header brings along, itself among it; names from csrc/."""
    if header not in seen:
        seen.add(header)
        for name in INCLUDE.findall((CSRC / header).read_text()):
            reached(name, seen)
    return seen


def test_every_folder_is_built() -> None:
    there = {path.name for path in CSRC.iterdir() if path.is_dir() and any(path.glob("*.[ch]"))}
    assert there == set(folders()) | ELSEWHERE


@pytest.mark.parametrize("folder", folders())
def test_headers_include_none_of_a_later_folder(folder: str) -> None:
    allowed = folders()[: folders().index(folder) + 1]
    for path in (CSRC / folder).glob("*.h"):
        found = {Path(name).parent.name for name in reached(str(path.relative_to(CSRC)), set())}
        assert found <= {*allowed, ""}, path


def test_a_rule_of_the_makefile_is_for_a_file_that_exists() -> None:
    """A rule for an object that no source makes is passed over by make without a word."""
    named = re.findall(r"\$\(OUT\)/obj/([\w/]+)\.o\b", (CSRC / "Makefile").read_text())
    assert named and [name for name in named if not (CSRC / f"{name}.c").exists()] == []
