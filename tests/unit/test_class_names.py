# SPDX-License-Identifier: Apache-2.0
"""A class name stands once in the product, so that reading it anywhere says which class it is."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Older names that stand several times. May only shrink.
TWICE = {}


def class_names() -> Counter[str]:
    """Return how often each name is that of a class."""
    paths = (
        path for folder in ("hypervisor", "limiter", "release") for path in (ROOT / folder).rglob("*.py")
    )
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))


def test_a_class_name_stands_once() -> None:
    found = {name: count for name, count in class_names().items() if count > 1}
    fresh = {name: count for name, count in found.items() if count > TWICE.get(name, 1)}
    assert not fresh, "give the new class another name"


def test_the_list_of_exceptions_names_nothing_that_is_mended() -> None:
    counts = class_names()
    assert {name: most for name, most in TWICE.items() if counts[name] < most} == {}, "lower these in TWICE"
