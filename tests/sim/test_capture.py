# SPDX-License-Identifier: Apache-2.0
"""While a graph is being recorded the library makes no call that could spoil it, in any thread or mode."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import LONG, Program

QUOTA = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "256MiB"}
SECONDS = "10" if LONG else "2"
MODES = ["global", "thread-local", "relaxed"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("state", "environ"),
    [
        ("", QUOTA),
        ("busy", QUOTA | {"GPULIMIT_COMPUTE": "50"}),
        ("", {"GPULIMIT_SIM_PROFILE": "h200", "GPULIMIT_MEMORY": "2GiB", "GPULIMIT_COMPUTE": "90"}),
    ],
    ids=["memory", "busy under a limit", "a card that rounds"],
)
def test_every_call_and_every_capture_ends_as_without_the_library(
    program: Program,
    run_process: Any,
    sim_env: dict[str, str],
    limited_env: dict[str, str],
    state: str,
    environ: dict[str, str],
) -> None:
    """37 kinds of calls, three modes of capture and of the thread, from the capturing thread and another."""
    argv = [program("capture/differ"), *([state] if state else [])]
    free = run_process(argv, env=sim_env | environ, expect=0, timeout=100).stdout.splitlines()
    limited = run_process(argv, env=limited_env | environ, expect=0, timeout=100).stdout.splitlines()
    assert len(free) == 37 * 18
    assert sum(", end 901" in line for line in free) > 50  # the driver does spoil some
    assert [line for line in limited if line not in free] == []
    assert limited == free


@pytest.mark.parametrize("mode", range(3), ids=MODES)
def test_captures_succeed_while_other_threads_are_held_back_at_quota_and_limit(
    program: Program, run_process: Any, limited_env: dict[str, str], mode: int
) -> None:
    env = limited_env | QUOTA | {"GPULIMIT_MEMORY": "64MiB", "GPULIMIT_COMPUTE": "30"}
    ended = run_process([program("capture/beside"), str(mode), SECONDS], env=env, expect=0)
    words = ended.stdout.split()
    counts = dict(zip(words[::2], (int(w) for w in words[1::2]), strict=True))
    assert counts["captures"] > 20
    assert counts["launched"] > 100
    assert mode == 0 or counts["stepped"] > 1000


def test_recording_is_free_and_replaying_is_charged(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    run_process([program("capture/charge")], env=limited_env | QUOTA | {"GPULIMIT_COMPUTE": "10"}, expect=0)
