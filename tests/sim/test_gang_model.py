# SPDX-License-Identifier: Apache-2.0
"""Jobs whose kernels wait for each other, on simulated cards without quota: as fast as arithmetic says."""

from __future__ import annotations

import json
from typing import Any

import pytest

Load = Any
AHEAD = ("--ahead", "100ms")
"""So much that this host may stall for a while."""


@pytest.fixture
def load(gpulimit: Any, sim_env: dict[str, str]) -> Load:
    """Run `gpulimit load --json` on eight cards; return its result."""

    def run(*arguments: str, **environ: str) -> dict[str, Any]:
        env = sim_env | {"GPULIMIT_SIM_GPUS": "8"} | environ
        done = gpulimit("load", "--json", *arguments, env=env, expect=0, timeout=60)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_job_alone_takes_its_kernels_and_the_transfer(load: Load, ranks: int) -> None:
    result = load(
        "--ranks", str(ranks), "--kernel", "1ms", "--collective-time", "1ms", "--seconds", "2", *AHEAD
    )
    assert result["steps_per_s"] == pytest.approx(500, rel=0.03)
    assert [rank["steps"] for rank in result["per_rank"]] == [result["steps"]] * ranks
    assert [rank["ordinal"] for rank in result["per_rank"]] == list(range(ranks))


def test_a_kernel_that_waits_for_a_later_launch_gets_it(load: Load) -> None:
    result = load("--await", "20")
    assert (result["rounds"], result["bail_outs"]) == (20, 0)
    assert result["longest_round_s"] < 0.5
