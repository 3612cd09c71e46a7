# SPDX-License-Identifier: Apache-2.0
"""The daemon goes and comes back: books, quotas and turns survive, also kill -9; and what lies about is
handled.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi

from tests.daemon.conftest import eventually, needs_root

MS = 1_000_000
GIB = 1 << 30
SHM = Path("/dev/shm")
USAGE_SIZE = ffi.sizeof("struct gl_usage")


def show_up(node: Any, *clients: Any) -> None:
    gpu = node.state()["gpus"][0]
    for one in clients:
        one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_books_and_quotas_survive_a_restart(daemon, client, tenant, number) -> None:
    node = daemon()
    one = client(memory="4GiB", compute=30)
    show_up(node, one)
    assert one.tell(order="reserve", size=GIB, limit=4 * GIB)["result"] == 0
    one.tell(order="spend", ns=123 * MS)
    node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "3GiB", "compute": 40})
    before = one.tell(order="look")
    node.stop(number)
    time.sleep(0.3)
    assert one.tell(order="look")["heartbeat_ns"] <= before["heartbeat_ns"] + 1_000 * MS
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 3 * GIB  # limits stay in force

    again = daemon()
    # The process has registered with nobody yet, but its tenant is known, and its policy lives again.
    shown = eventually(lambda: again.tenant(tenant))
    assert shown["source"] == "api"
    assert shown["gpus"][0]["memory_used_bytes"] == GIB
    assert shown["gpus"][0]["spent_ns"] == 123 * MS
    now = eventually(
        lambda: (look := one.tell(order="look"))["heartbeat_ns"] > before["heartbeat_ns"] and look
    )
    assert now["daemon_start_ns"] != before["daemon_start_ns"]
    (device,) = now["devices"]
    assert device["memory_limit_bytes"] == 3 * GIB
    assert not device["shared"] or device["granted_ns"] >= 123 * MS

    assert one.tell(order="commands")["status"] == 404
    registered = one.tell(order="register", tenant=tenant, environment={})
    assert registered["status"] == 200
    assert registered["source"] == "api"
    assert one.tell(order="commands")["status"] == 204
    assert len(again.tenant(tenant)["workers"]) == 1


def test_a_suspended_tenant_is_suspended_after_a_restart(daemon, client, tenant) -> None:
    node = daemon()
    one = client()
    node.ask("POST", f"/v1/tenants/{tenant}/suspend")
    node.stop(signal.SIGKILL)
    again = daemon()
    eventually(lambda: again.tenant(tenant))
    assert one.tell(order="look")["devices"][0]["suspended"] == 1
    assert again.tenant(tenant)["suspended"]


def test_a_tenant_that_died_meanwhile_is_not_taken_over(daemon, client, tenant) -> None:
    node = daemon()
    one = client(memory="4GiB")
    node.stop(signal.SIGKILL)
    one.kill()
    again = daemon()
    assert again.tenant(tenant) is None
    assert not (SHM / f"gpulimit.u.{tenant}").exists()
    assert client(memory="1GiB").tell(order="look")["devices"][0]["memory_limit_bytes"] == GIB


def test_granted_time_starts_at_spent_after_a_restart(daemon, client, other_tenant) -> None:
    node = daemon()
    one, two = client(), client(other_tenant)
    show_up(node, one, two)
    for _ in range(5):
        one.tell(order="spend", ns=50 * MS, waiting=1)
        two.tell(order="spend", ns=20 * MS, waiting=1)
        time.sleep(0.02)
    node.stop(signal.SIGKILL)
    one.tell(order="spend", ns=700 * MS, waiting=1)  # by the wall clock, while nobody was there
    daemon()
    spent = 950 * MS
    eventually(lambda: one.tell(order="look")["devices"][0]["granted_ns"] >= spent)
    assert one.tell(order="look")["devices"][0]["granted_ns"] <= spent + 100 * MS


def lay(kind: str, path: Path, victim: Path) -> None:
    """Put something where a usage segment is to be."""
    spare = path.with_name(f"{path.name}-spare")
    if kind == "old layout":
        path.write_bytes(b"\x47\x50\x55\x4c" + bytes(USAGE_SIZE - 4))
    elif kind == "short":
        path.write_bytes(b"x" * 4096)
    elif kind == "random":
        path.write_bytes(os.urandom(USAGE_SIZE))
    elif kind == "symlink":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "foreign":
        path.write_bytes(bytes(USAGE_SIZE))
        os.chown(path, 1234, 1234)
    else:
        spare.write_bytes(bytes(USAGE_SIZE))
        path.hardlink_to(spare)


KINDS = ("old layout", "short", "random", "symlink", "fifo", "folder", "foreign", "hard link")


@needs_root()
def test_what_lies_in_the_way_is_set_aside(daemon, client, tenant, tmp_path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for number, kind in enumerate(KINDS):
        lay(kind, SHM / f"gpulimit.u.{tenant}-{number}", victim)
    node = daemon()
    for number, kind in enumerate(KINDS):
        path = SHM / f"gpulimit.u.{tenant}-{number}"
        assert client(f"{tenant}-{number}").tell(order="look")["devices"], kind
        assert path.is_file() and path.stat().st_size == USAGE_SIZE
    assert node.state()["counts"]["segment_set_aside"] == len(KINDS)
    assert victim.read_text() == "precious"


def test_a_standalone_segment_with_living_processes_is_taken_over(daemon, client, tenant) -> None:
    """Their books are the tenant's books: a process that joins by the daemon finds them."""
    from tests.segments import craft

    path = SHM / f"gpulimit.u.{tenant}"
    path.write_bytes(craft({"devices": [{}], "slots": []}))
    path.chmod(0o600)
    node = daemon()
    one = client()
    assert one.tell(order="look")["devices"]
    assert "segment_set_aside" not in node.state()["counts"]


def test_a_spoiled_state_file_is_no_reason_not_to_start(daemon, client, tmp_path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tenants.json").write_text(
        '{"version": 1, "api": {"a": {"GPULIMIT_MEMORY": "4GX"}}}'
    )
    node = daemon()
    assert client().answer["status"] == 200
    assert "cannot read" in node.stop()
