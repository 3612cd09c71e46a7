# SPDX-License-Identifier: Apache-2.0
"""Processes killed at any instruction: the others go on, and the books stay true to the byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import LONG, ROOT, Program

EXACT = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "24MiB"}
ROUNDS = 10000 if LONG else 1000


def points() -> list[str]:
    """Return the places in the books of memory where a test may kill."""
    names: set[str] = set()
    for source in [file for folder in ("segment", "memory") for file in (ROOT / "csrc" / folder).glob("*.c")]:
        names |= set(re.findall(r'GL_TEST_POINT\("([^"]+)"\)', source.read_text()))
    assert {"ledger-announced", "ledger-account-written", "ledger-written-down"} <= names
    return sorted(name for name in names if not name.startswith("joining-"))


@pytest.mark.slow
@pytest.mark.timeout(600 if LONG else 180)
def test_killed_processes_leave_true_books_and_hold_nobody_up(
    program: Program, run_process: Any, limited_env: dict[str, str], points_library: Path
) -> None:
    """Half of the rounds kill at each of the library's critical places in turn, half at a random moment."""
    env = limited_env | EXACT | {"LD_PRELOAD": str(points_library)}
    argv = [program("kills/rounds"), str(ROUNDS), "4", "1", *points()]
    ended = run_process(argv, env=env, timeout=580 if LONG else 170, expect=0)
    words = ended.stdout.split()
    counts = dict(zip(words[::2], (float(w) for w in words[1::2]), strict=True))
    assert counts["killed_at_point"] > ROUNDS / 2 * 0.7
    assert counts["killed_at_random"] > ROUNDS / 2 * 0.7
    assert counts["steps"] > ROUNDS


@pytest.mark.parametrize("point", points())
def test_every_point_is_passed(
    program: Program, run_process: Any, limited_env: dict[str, str], points_library: Path, point: str
) -> None:
    """Guards the test above: a point that nothing passes any more would test nothing."""
    env = limited_env | EXACT | {"LD_PRELOAD": str(points_library)}
    ended = run_process([program("kills/rounds"), "20", "1", "3", point], env=env, expect=0)
    assert int(ended.stdout.split()[1]) >= 5


def test_a_descriptor_taken_over_by_the_program_makes_nobody_dead(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    run_process([program("kills/taken_over")], env=limited_env | EXACT, expect=0)
