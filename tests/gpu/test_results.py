# SPDX-License-Identifier: Apache-2.0
"""A program computes the same with and without the library, bit for bit, and ends in the same way."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]


def test_results_are_the_same(
    run_program: Any, card_env: dict[str, str], quota_env: dict[str, str], built: Any, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "other-name.so"  # whoever uses the library puts it where he likes
    shutil.copy(built.library, elsewhere)
    no_quota = {k: v for k, v in card_env.items() if k != "GPULIMIT_TENANT"} | {"LD_PRELOAD": str(elsewhere)}
    environments = {"without": card_env, "quota": quota_env, "no quota": no_quota}

    def run(env: dict[str, str]) -> Any:
        fixed = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return run_program("torch_results.py", env=env | fixed, needs=("torch",))

    with ThreadPoolExecutor(len(environments)) as pool:
        runs = dict(zip(environments, pool.map(run, environments.values()), strict=True))
    for outcome in runs.values():
        outcome.verify()
    found = {name: [(c["check"], c["figures"]) for c in o.checks] for name, o in runs.items()}
    assert found["quota"] == found["no quota"] == found["without"]
    assert runs["quota"].stderr == runs["no quota"].stderr == runs["without"].stderr
