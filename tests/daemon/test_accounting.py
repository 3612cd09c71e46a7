# SPDX-License-Identifier: Apache-2.0
"""What registered processes used of the GPU is known to the daemon, also of those that have become idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from limiter import segment

from .conftest import eventually

MS = 1_000_000


@pytest.fixture
def burst(
    built: Any, daemon_env: dict[str, str], run_dir: Any, tenant: str, program: Any, start_process: Any
) -> Callable[..., Any]:
    """Start tests/c/compute/burst.c as a client of the test's daemon."""

    def start(*options: str, **environ: str) -> Any:
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": tenant,
        }
        return start_process([program("compute/burst"), *options], env=env | environ)

    return start


def used_ns(tenant: str) -> int:
    """Return what a tenant was charged, 0 before it is there."""
    try:
        return max((device.used_ns for device in segment.read(tenant).devices), default=0)
    except FileNotFoundError:
        return 0


def test_a_process_with_nothing_more_to_do_has_been_charged_for_all_it_did(
    daemon: Any, burst: Any, tenant: str
) -> None:
    """It waits for nothing that the library sees: the library's thread looks, once a second."""
    daemon()
    process = burst("kernel=7000000", "count=30", "wait=poll", "pause=20000")
    true_ns = 30 * 7 * MS
    began = time.monotonic()
    eventually(lambda: process.poll() is not None or abs(used_ns(tenant) - true_ns) < true_ns / 100)
    assert process.poll() is None
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("end", ["return", "fast", "destroy"])
def test_one_that_ends_at_once_has_been_charged_for_all_it_did(
    daemon: Any, burst: Any, tenant: str, end: str
) -> None:
    daemon()
    keeper = burst("count=0", "pause=60000")
    eventually(lambda: segment.path_of(tenant).exists())
    for _ in range(3):
        out, err = burst("kernel=7000000", "count=20", f"end={end}").communicate(timeout=20)
        assert out, err
    assert used_ns(tenant) == pytest.approx(3 * 20 * 7 * MS, rel=0.01)
    keeper.kill()


def test_a_tenant_whose_driver_refuses_events_is_degraded(daemon: Any, burst: Any, tenant: str) -> None:
    """Metrics say so, and status."""
    node = daemon()
    process = burst(
        *("kernel=3000000", "count=10", "rounds=400", "pause=10"),
        GPULIMIT_COMPUTE="30",
        GPULIMIT_SIM_FAULTS="cuEventElapsedTime:fail=2",
    )
    eventually(lambda: 'state="degraded"} 1' in page_of(node))
    process.kill()


def page_of(node: Any) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=10) as answer:
        return "\n".join(line for line in answer.read().decode().splitlines() if "enforcement_state" in line)
