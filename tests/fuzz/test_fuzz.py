# SPDX-License-Identifier: Apache-2.0
"""Runs the C fuzzers for a few seconds each, or GPULIMIT_FUZZ_SECONDS; see the Makefile here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TARGETS = 7
SECONDS = int(os.environ.get("GPULIMIT_FUZZ_SECONDS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(TARGETS * (SECONDS + 60) + 120)
def test_fuzzers_find_nothing() -> None:
    done = subprocess.run(
        ["make", "-s", "run", f"SECONDS={SECONDS}"],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TARGETS * (SECONDS + 60) + 100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert done.stdout.count("no finding") == TARGETS
