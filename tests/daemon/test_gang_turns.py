# SPDX-License-Identifier: Apache-2.0
"""Daemon, library and simulated driver together: jobs over several cards beside single tenants.

The simulated cards run on the host's own clock, so a busy host shifts these figures; exact ones come from
tests/scheduler/test_gangs.py, where time is virtual.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Built, StartProcess, remove_segments
from tests.daemon.conftest import eventually

Load = Callable[..., "subprocess.Popen[str]"]
STEP_S = 0.0006
"""GPU time of a step: a kernel of 500 us and a collective of 100 us."""


@pytest.fixture
def cards(request: pytest.FixtureRequest, daemon_env: dict[str, str]) -> int:
    """Number of cards of the simulated machine: the test's parameter, or two."""
    count = int(getattr(request, "param", 2))
    daemon_env["GPULIMIT_SIM_GPUS"] = str(count)
    return count


@pytest.fixture
def names(tenant: str, cards: int) -> Iterator[list[str]]:
    """Names of a single tenant on each card; their shared memory is removed with the test's."""
    found = [f"{tenant}-{card}" for card in range(cards)]
    yield found
    for name in found:
        remove_segments(name)


@pytest.fixture
def load(built: Built, daemon_env: dict[str, str], run_dir, start_process: StartProcess) -> Load:
    """Start the built-in workload as a tenant of the test's daemon."""

    def start(
        name: str, *arguments: str, environment: dict[str, str] | None = None, **quota: object
    ) -> subprocess.Popen[str]:
        env = (
            daemon_env
            | (environment or {})
            | {
                "LD_LIBRARY_PATH": str(built.sim),
                "LD_PRELOAD": str(built.library),
                "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
                "GPULIMIT_TENANT": name,
                **{f"GPULIMIT_{k.upper()}": str(v) for k, v in quota.items()},
            }
        )
        return start_process([sys.executable, "-P", "-m", "limiter", "load", "--json", *arguments], env=env)

    return start


def start_job(load: Load, tenant: str, ranks: int, *more: str, **quota: object) -> subprocess.Popen[str]:
    arguments = ("--ranks", str(ranks), "--collective-timeout", "5s", "--ahead", "20ms", *more)
    return load(tenant, *arguments, **quota)


def start_singles(load: Load, names: list[str], *more: str, **quota: object) -> None:
    for card, name in enumerate(names):
        load(name, *more, environment={"CUDA_VISIBLE_DEVICES": str(card)}, **quota)


def spent(node: Any, names: list[str]) -> list[int]:
    """Return GPU time charged to tenants, on the GPU where each has most."""
    tenants = {t["tenant"]: t for t in node.state()["tenants"]}
    return [
        max([g.get("spent_ns", 0) for g in tenants[n]["gpus"]], default=0) if n in tenants else 0
        for n in names
    ]


def used(node: Any, names: list[str], for_s: float) -> tuple[float, float, list[float]]:
    """Return begin and end of a window, and the fraction of a GPU that each tenant used in it."""
    from_s, before = time.monotonic(), spent(node, names)
    time.sleep(for_s)
    to_s, after = time.monotonic(), spent(node, names)
    return from_s, to_s, [(b - a) / 1e9 / (to_s - from_s) for a, b in zip(before, after, strict=True)]


def has_turn(node: Any, name: str) -> bool:
    return any(gpu.get("turn") for gpu in (node.tenant(name) or {"gpus": []})["gpus"])


def speed(done: dict[str, Any], from_s: float, to_s: float) -> float:
    """Return the steps of the slowest rank between two moments, over those of the job alone."""
    taken = []
    for rank in done["per_rank"]:
        inside = [(at, steps) for at, steps in rank["samples"] if from_s <= at <= to_s]
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        taken.append((last - first) / (last_s - first_s))
    return min(taken) * STEP_S


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    return dict(json.loads(out))


@pytest.mark.parametrize("cards", [2, 8], indirect=True)
def test_a_job_beside_a_single_on_each_card_gets_about_half(daemon, load, tenant, names, cards) -> None:
    node = daemon()
    job = start_job(load, tenant, cards, "--seconds", "8", request=50)
    start_singles(load, names, "--seconds", "9", request=50)
    eventually(lambda: all(spent(node, [tenant, *names])), within_s=20)
    time.sleep(1)
    from_s, to_s, of_singles = used(node, names, 3)
    # Eight ranks and eight singles keep a host of two cores busy by themselves.
    least = 0.33 if cards == 2 else 0.12
    assert speed(result(job), from_s, to_s) >= least
    assert min(of_singles) >= least


@pytest.mark.parametrize("into_s", [0.0, 0.03, 0.09, 0.11, 0.16])
def test_a_daemon_killed_at_any_moment_of_a_turn_is_carried_on_from(
    daemon, load, tenant, names, into_s
) -> None:
    """Nobody waits for ever meanwhile, and turns are shared as before once it is back."""
    node = daemon()
    job = start_job(load, tenant, 2, "--seconds", "12", request=50)
    start_singles(load, names, "--seconds", "13", request=50)
    eventually(lambda: all(spent(node, [tenant, *names])), within_s=20)
    eventually(lambda: has_turn(node, tenant))
    time.sleep(into_s)
    node.stop(signal.SIGKILL)
    time.sleep(1)
    node = daemon()
    eventually(lambda: all(spent(node, [tenant, *names])), within_s=20)
    time.sleep(1)
    from_s, to_s, of_singles = used(node, names, 2.5)
    assert speed(result(job), from_s, to_s) >= 0.33
    assert min(of_singles) >= 0.40


def test_a_rank_that_is_killed_ends_the_job_and_frees_its_cards(daemon, load, tenant, names) -> None:
    """The others end by their framework's own error, and the gang's turns end with them."""
    node = daemon()
    job = start_job(load, tenant, 2, "--seconds", "20", "--collective-timeout", "2s", request=50)
    start_singles(load, names, "--seconds", "14", request=50)
    eventually(lambda: all(spent(node, [tenant, *names])), within_s=20)
    eventually(lambda: has_turn(node, tenant))
    (pid, *_) = [worker["host_pid"] for worker in (node.tenant(tenant) or {})["workers"]]
    os.kill(pid, signal.SIGKILL)
    _, err = job.communicate(timeout=20)
    assert job.returncode == 1
    assert "was killed by SIGKILL" in err
    eventually(lambda: node.tenant(tenant) is None or not (node.tenant(tenant) or {})["workers"])
    assert min(used(node, names, 2)[2]) >= 0.85


@pytest.mark.parametrize("cards", [3], indirect=True)
def test_a_tenant_that_joins_by_name_has_the_job_s_turns_too(
    daemon, load, tenant, other_tenant, names
) -> None:
    node = daemon()
    job = start_job(
        load, tenant, 2, "--seconds", "12", environment={"CUDA_VISIBLE_DEVICES": "0,1"}, gang="job"
    )
    start_singles(load, names, "--seconds", "13")
    eventually(lambda: all(spent(node, [tenant, *names])), within_s=20)
    third = {"CUDA_VISIBLE_DEVICES": "2"}
    load(other_tenant, "--seconds", "9", environment=third, gang="job")
    eventually(lambda: all(spent(node, [other_tenant])), within_s=20)
    time.sleep(0.5)
    from_s, to_s, shares = used(node, [other_tenant, *names], 2.5)
    assert min(shares) >= 0.35
    assert max(shares) <= 0.65
    assert speed(result(job), from_s, to_s) >= 0.30
