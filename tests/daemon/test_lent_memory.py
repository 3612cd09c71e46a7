# SPDX-License-Identifier: Apache-2.0
"""Memory that tenants of a daemon share is charged to its maker, and later to one that still holds it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import Daemon, eventually
from tests.sim.sharing import MIB, Member

SIZE = 600 * MIB


@pytest.fixture
def node(daemon: Callable[..., Daemon]) -> Callable[..., Daemon]:
    """Start daemons of a node with the small card."""
    return lambda: daemon(env={"GPULIMIT_SIM_PROFILE": "small"})


def booked(node: Daemon, *tenants: str) -> list[int]:
    """Return what the daemon shows for the tenants on their one card."""
    found = [node.tenant(name) for name in tenants]
    return [int(t["gpus"][0].get("memory_used_bytes", 0)) if t and t["gpus"] else 0 for t in found]


def hand(exporter: Member, importer: Member) -> tuple[int, Any]:
    """Let one make memory and the other open it; return its address here and there."""
    result, pointer = exporter("alloc", SIZE)
    assert result == 0
    result, name = exporter("ipc_name", pointer)
    assert result == 0
    result, at = importer("ipc_open", name)
    assert result == 0
    return pointer, at


@pytest.mark.parametrize("end", ["killed", "given back"])
def test_the_daemon_counts_shared_memory_once(
    node: Callable[..., Daemon], member: Callable[[str], Member], tenant: str, other_tenant: str, end: str
) -> None:
    running = node()
    exporter, importer = member(tenant), member(other_tenant)
    pointer, at = hand(exporter, importer)
    assert (exporter.used(), importer.used()) == (SIZE, 0)
    assert booked(running, tenant, other_tenant) == [SIZE, 0]
    if end == "killed":
        exporter.kill()
    else:
        assert exporter("free", pointer) == 0
    assert importer.used() == SIZE
    eventually(lambda: booked(running, tenant, other_tenant) == [0, SIZE])
    assert importer("ipc_close", at) == 0
    assert importer.used() == 0


def test_a_restart_of_the_daemon_changes_nothing(
    node: Callable[..., Daemon], member: Callable[[str], Member], tenant: str, other_tenant: str
) -> None:
    running = node()
    exporter, importer = member(tenant), member(other_tenant)
    pointer, _ = hand(exporter, importer)
    running.stop(signal.SIGKILL)
    assert (exporter.used(), importer.used()) == (SIZE, 0)
    running = node()
    eventually(lambda: booked(running, tenant, other_tenant) == [SIZE, 0])
    third = member(other_tenant)
    assert third.used() == 0
    assert exporter("free", pointer) == 0
    assert third.used() == importer.used() == SIZE
    eventually(lambda: booked(running, tenant, other_tenant) == [0, SIZE])
