# SPDX-License-Identifier: Apache-2.0
"""Tenants as `gpulimit status` shows them, over segments made by hand; and removing segments."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from limiter import daemon_client, segment, tenants

ROOT = Path(__file__).parents[2]
LIMITED = {
    "memory_limit_bytes": 4 << 30,
    "compute_limit_percent": 30,
    "spent_ns": 5_000_000_000,
    "refused": 3,
}
ONE_LIVING_ONE_DEAD = {
    "devices": [LIMITED],
    "slots": [
        {"accounts": [{"used_bytes": 1 << 30, "launches": [10, 1, 2, 5]}]},
        {"accounts": [{"used_bytes": 2 << 30, "launches": [100, 0, 0, 0]}]},
    ],
}


@pytest.fixture
def inhabited(tenant: str, start_process) -> Any:
    """Return a function that makes the tenant's segment with a living process in slot 0."""

    def make(description: dict[str, Any]) -> Any:
        argv = [sys.executable, "tests/segments.py", segment.path_of(tenant), json.dumps(description)]
        process = start_process(argv, env=dict(os.environ) | {"PYTHONPATH": str(ROOT)}, cwd=ROOT)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    return make


def shown(capsys: pytest.CaptureFixture[str], tenant: str, *arguments: str) -> list[dict[str, Any]]:
    from limiter.cli import main

    assert main(["status", "--json", "--over", "0.05", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    return [row for row in answer["tenants"] if row["tenant"] == tenant]


def test_memory_and_launches_are_those_of_living_processes(tenant: str, inhabited, capsys) -> None:
    inhabited(ONE_LIVING_ONE_DEAD)
    (row,) = shown(capsys, tenant)
    assert row["processes"] == 1
    assert row["memory_used_bytes"] == 1 << 30
    assert row["memory_booked_bytes"] == 3 << 30
    assert row["memory_limit_bytes"] == 4 << 30
    assert row["compute_limit_percent"] == 30
    assert row["compute_share"] == 0.0
    assert row["refused"] == 3
    assert row["launches"] == {"kernel": 10, "cooperative": 1, "graph": 2, "captured": 5}


def test_a_tenant_without_living_processes_is_shown_only_on_demand(
    tenant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.segments import craft

    segment.path_of(tenant).write_bytes(craft(ONE_LIVING_ONE_DEAD))
    assert shown(capsys, tenant) == []
    (row,) = shown(capsys, tenant, "--all")
    assert row["processes"] == 0


def test_a_table_is_printed_for_people(tenant: str, inhabited, capsys) -> None:
    inhabited(ONE_LIVING_ONE_DEAD)
    from limiter.cli import main

    assert main(["status", "--over", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(tenant)]
    assert line.split()[1:] == [
        "GPU-01010101",
        "1",
        "1",
        "GiB",
        "4",
        "GiB",
        "0.0%",
        "30%",
        "5",
        "s",
        "0",
        "ns",
        "3",
        "18",
    ]


@pytest.mark.parametrize("content", [b"", b"x", bytes(segment.SIZE), b"\xff" * segment.SIZE])
def test_a_damaged_segment_is_named_and_hides_nobody(tenant: str, content: bytes, capsys) -> None:
    segment.path_of(tenant).write_bytes(content)
    from limiter.cli import main

    assert main(["status", "--json", "--over", "0"]) == 0
    assert tenant in json.loads(capsys.readouterr().out)["unreadable"]


def test_a_socket_that_nobody_listens_on_is_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "socket").touch()
    monkeypatch.setenv("GPULIMIT_SOCKET", str(tmp_path / "socket"))
    assert daemon_client.answers() is False


def test_a_segment_in_use_is_not_removed(tenant: str, inhabited) -> None:
    process = inhabited(ONE_LIVING_ONE_DEAD)
    assert tenants.remove_if_unused(tenant) is False
    process.kill()
    process.wait()
    assert tenants.remove_if_unused(tenant) is True
    assert not segment.path_of(tenant).exists()


def test_removing_what_is_not_there_is_fine(tenant: str) -> None:
    assert tenants.remove_if_unused(tenant) is True


def test_segments_of_commands_that_were_killed_are_swept() -> None:
    from tests.segments import craft

    mine = tenants.made_up_name()
    dead = f"run-{os.getpid()}-1"
    for name in (mine, dead):
        segment.path_of(name).write_bytes(craft({}))
    try:
        tenants.remove_abandoned()
        assert segment.path_of(mine).exists()
        assert not segment.path_of(dead).exists()
    finally:
        for name in (mine, dead):
            segment.path_of(name).unlink(missing_ok=True)
