# SPDX-License-Identifier: Apache-2.0
"""A million random allocations and frees of every kind by eight processes: not a byte is lost or made up."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import LONG, Program

PROCESSES = 8
STEPS = (10_000_000 if LONG else 1_000_000) // PROCESSES


@pytest.mark.slow
@pytest.mark.timeout(1200 if LONG else 240)
@pytest.mark.parametrize(("memory", "share"), [("64MiB", 0.7), ("16MiB", 0.3)])
def test_books_equal_the_card_after_a_million_random_steps(
    program: Program, run_process: Any, limited_env: dict[str, str], memory: str, share: float
) -> None:
    env = limited_env | {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": memory}
    argv = [program("kills/churn"), str(PROCESSES), str(int(STEPS * share)), "1"]
    ended = run_process(argv, env=env, timeout=1100 if LONG else 230, expect=0)
    words = ended.stdout.split()
    counts = dict(zip(words[::2], (int(w) for w in words[1::2]), strict=True))
    assert counts["samples"] > 100
    assert counts["refused"] > 100  # the quota was hit
