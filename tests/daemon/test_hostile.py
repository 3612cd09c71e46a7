# SPDX-License-Identifier: Apache-2.0
"""Tenants that write what they like into their segments: the daemon goes on, and so do the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import eventually

MS = 1_000_000
GIB = 1 << 30


def show_up(node: Any, *clients: Any) -> None:
    gpu = node.state()["gpus"][0]
    for one in clients:
        one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])


def goes_on(node: Any, good: Any) -> None:
    """The good tenant's policy beats, and it is granted time."""
    first = good.tell(order="look")["heartbeat_ns"]
    eventually(lambda: good.tell(order="look")["heartbeat_ns"] > first, within_s=2)
    spent = good.tell(order="look")["spent_ns"]
    good.tell(order="spend", ns=MS, waiting=1)
    device = lambda: good.tell(order="look")["devices"][0]  # noqa: E731
    eventually(lambda: not device()["shared"] or device()["granted_ns"] > spent + MS, within_s=2)
    assert node.state()["gpus"]


@pytest.mark.parametrize("size", [0, 4096])
def test_a_segment_that_is_cut_short_costs_only_its_tenant(
    daemon, client, tenant, other_tenant, size
) -> None:
    node = daemon()
    bad, good = client(), client(other_tenant)
    show_up(node, bad, good)
    bad.tell(order="truncate", size=size)
    eventually(lambda: (node.tenant(tenant) or {}).get("problem"), within_s=3)
    goes_on(node, good)
    bad.kill()
    eventually(lambda: not node.tenant(tenant)["workers"])
    goes_on(node, good)
    fresh = client()  # and a new process of the tenant gets new books
    show_up(node, fresh)
    goes_on(node, fresh)
    assert Path(f"/dev/shm/gpulimit.u.{tenant}").stat().st_size > 1_000_000


def test_a_spoiled_header_costs_its_tenant_the_gpu(daemon, client, tenant, other_tenant) -> None:
    node = daemon()
    bad, good = client(), client(other_tenant)
    show_up(node, bad, good)
    bad.tell(order="spoil")
    eventually(lambda: (node.tenant(tenant) or {}).get("problem"), within_s=3)
    device = bad.tell(order="look")["devices"][0]
    assert (device["shared"], device["granted_ns"]) == (1, 0)
    goes_on(node, good)


def test_random_books_harm_nobody_else(daemon, client, other_tenant) -> None:
    node = daemon()
    bad, good = client(), client(other_tenant)
    show_up(node, bad, good)
    for seed in range(10):
        bad.tell(order="scribble", seed=seed)
        bad.tell(order="ring", times=1)
        goes_on(node, good)
    bad.kill()
    goes_on(node, good)
    assert node.process.poll() is None


def test_figures_that_cannot_be_harm_nobody_else(daemon, client, other_tenant) -> None:
    node = daemon()
    bad, good = client(compute=50, request=20), client(other_tenant)
    show_up(node, bad, good)
    most, word = (1 << 64) - 1, (1 << 32) - 1
    for spent in (most, 0, most - 1, 1 << 63, 5, most):
        for outstanding, waiting in ((most, word), (0, 1), (1 << 63, 0)):
            bad.tell(order="lie", spent_ns=spent, outstanding_ns=outstanding, waiting=waiting)
            time.sleep(0.005)
        goes_on(node, good)


def test_a_tenant_that_rings_without_pause_cannot_wear_the_daemon_out(daemon, client, other_tenant) -> None:
    node = daemon()
    bad, good = client(), client(other_tenant)
    show_up(node, bad, good)
    before, begin = cpu_s(node.process.pid), time.monotonic()
    while time.monotonic() - begin < 1.0:
        bad.tell(order="ring", times=20_000)
    used = (cpu_s(node.process.pid) - before) / (time.monotonic() - begin)
    assert used < 0.5
    goes_on(node, good)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
