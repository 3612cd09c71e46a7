# SPDX-License-Identifier: Apache-2.0
"""Bounds are called MAX_… and MIN_…, in Python and in C, with what they bound and its unit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("csrc", "hypervisor", "limiter", "release", "tests/c", "tests/fuzz")
OTHER_WORDS = re.compile(r"\b\w*(?<![A-Z])(?:MOST|LONGEST|LARGEST|LEAST|SHORTEST|SMALLEST)(?![A-Z])\w*\b")
DEFINED = re.compile(
    r"^(?P<python>[A-Z][A-Z0-9_]*)(?:: [^=\n]+)? = |^#define (?P<macro>[A-Z][A-Z0-9_]*)\b"
    r"|\b(?P<enum>[A-Z][A-Z0-9_]*) = ",
    re.MULTILINE,
)


def constants(path: Path) -> set[str]:
    """Return the names in capitals that a file defines."""
    found = DEFINED.finditer(path.read_text(encoding="utf-8"))
    return {match["python"] or match["macro"] or match["enum"] for match in found}


@pytest.mark.parametrize("folder", FOLDERS)
def test_bounds_are_called_max_and_min(folder: str) -> None:
    sources = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".c", ".h", ".py")]
    assert sources
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        if not path.name.startswith("_native")
        for name in constants(path)
        if OTHER_WORDS.fullmatch(name)
    }
    assert not wrong, "MAX_… or MIN_…, and what of: MAX_EVENTS, MIN_STEP_BYTES"
    bare = {
        f"{path.relative_to(ROOT)}: {name}" for path in sources for name in constants(path) & {"MAX", "MIN"}
    }
    assert not bare
