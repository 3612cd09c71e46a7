# SPDX-License-Identifier: Apache-2.0
"""`make test` runs most files side by side, and some tests alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ALONE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("kind", "expected"), [("only", "test_child"), ("no", "test_units")])
def test_a_file_runs_either_alone_or_beside_another(kind: str, expected: str) -> None:
    files = ["tests/unit/test_child.py", "tests/unit/test_units.py"]
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", f"--alone={kind}", *files]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=50, check=True)
    found = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {f"tests/unit/{expected}.py"}


def test_what_runs_alone_exists() -> None:
    assert [name for name in ALONE if not (ROOT / "tests" / name).exists()] == []
