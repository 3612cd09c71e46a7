# SPDX-License-Identifier: Apache-2.0
"""`gpulimit top` shows what nvidia-smi says at the same moment, with the daemon and without one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import PROGRAMS, REHEARSAL, ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120), pytest.mark.alone]
POINTS = 40 if REHEARSAL else 5
"""By how much a share of the last second may be off. A busy host shifts the simulated one."""


@pytest.fixture
def smi_env(card_env: dict[str, str]) -> dict[str, str]:
    """`card_env` with an nvidia-smi: in a rehearsal, one that asks the simulated driver."""
    if REHEARSAL:
        path = [str(PROGRAMS / "smi"), str(Path(sys.executable).parent), os.environ["PATH"]]
        return card_env | {"PATH": os.pathsep.join(path)}
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi")
    return card_env


@pytest.mark.parametrize("part", ["with-daemon", "without-daemon"])
def test_top_shows_what_nvidia_smi_says(
    part: str, smi_env, built, tenant, run_process, tmp_path, note
) -> None:
    options = {
        "library": built.library,
        "parts": part,
        "prefix": tenant,
        "share-points": POINTS,
        "out": tmp_path / "found.json",
    }
    flags = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    done = run_process(
        [sys.executable, ROOT / "bench" / "top_beside_smi.py", *flags], env=smi_env, timeout=100
    )
    assert (tmp_path / "found.json").exists(), done.stderr
    rows: list[dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())[part]
    for row in rows:
        note(row["what"], f"{row['top']} | {row['smi']} | {row['bound']}")
    wrong = [f"{r['what']}: {r['top']} beside {r['smi']} ({r['bound']})" for r in rows if not r["is_right"]]
    assert not wrong, "\n".join(wrong)
    assert done.returncode == 0, done.stderr
