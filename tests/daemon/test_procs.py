# SPDX-License-Identifier: Apache-2.0
"""Which process is at the other end of a Unix socket, and where it runs."""

from __future__ import annotations

import os
import socket

import pytest

from hypervisor.errors import Refused
from hypervisor.host import control_groups, peer, process_files
from hypervisor.host.cgroup import Membership

POD = "1a2b3c4d-0000-4000-8000-00000000000a"
CONTAINERS = "a" * 64, "b" * 64


def text(pod: str | None, container: str | None) -> str:
    return f"0::/kubepods/{'pod' + pod if pod else 'x'}/{container or ''}\n"


@pytest.mark.parametrize(
    ("own", "other", "seen"),
    [
        ((None, None), (None, None), (None, None)),
        ((None, CONTAINERS[0]), (None, CONTAINERS[0]), (None, None)),
        ((None, CONTAINERS[0]), (None, CONTAINERS[1]), (None, CONTAINERS[1])),
        ((POD, CONTAINERS[0]), (POD, CONTAINERS[0]), (None, None)),
        ((POD, CONTAINERS[0]), (POD, CONTAINERS[1]), (POD, CONTAINERS[1])),
        ((POD, CONTAINERS[0]), (None, None), (None, None)),
        ((None, None), (POD, CONTAINERS[0]), (POD, CONTAINERS[0])),
    ],
)
def test_only_what_runs_in_the_daemons_own_container_counts_as_plain(
    monkeypatch, tmp_path, own, other, seen
) -> None:
    folder = tmp_path / "self"
    folder.mkdir()
    (folder / "cgroup").write_text(text(*own))
    (folder / "mountinfo").write_text("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    monkeypatch.setattr(control_groups.Hierarchy, "believed", lambda _, names: len(names))
    place = control_groups.ControlGroups(tmp_path).place(text(*other))
    assert place.member == Membership(*seen)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_peer_is_the_process_that_connected(pair) -> None:
    found = peer.Peers().of(pair[0])
    ticks = process_files.stat_of(os.getpid()).start_ticks
    assert (found.key.host_pid, found.key.start_ticks) == (os.getpid(), ticks)
    assert (found.origin.uid, found.origin.gid) == (os.geteuid(), os.getegid())
    assert found.is_of_the_node
    assert not found.origin.unknown_group


@pytest.mark.parametrize("broken", ["", "\n", "nonsense", "0::", "0::/a (deleted)\n"])
def test_a_control_group_that_cannot_be_read_is_a_refusal(monkeypatch, pair, broken) -> None:
    peers = peer.Peers()
    monkeypatch.setattr(process_files, "cgroup_text", lambda _: broken)
    with pytest.raises(Refused, match="cannot be read"):
        peers.of(pair[0])


@pytest.mark.parametrize("name", ["cgroup_text", "status_of", "stat_of", "uid_map"])
def test_a_file_of_the_process_that_is_closed_is_a_refusal(monkeypatch, pair, name) -> None:
    peers = peer.Peers()

    def closed(_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(process_files, name, closed)
    with pytest.raises(Refused):
        peers.of(pair[0])


@pytest.mark.parametrize(("state", "flags"), [("Z", 0), ("X", 0), ("R", 0x4), ("S", 0x400004)])
def test_a_process_about_to_end_is_refused(monkeypatch, pair, state, flags) -> None:
    """Version 1 of control groups shows it in the root, wherever it was."""
    peers = peer.Peers()
    monkeypatch.setattr(process_files, "stat_of", lambda _: process_files.ProcessStat(state, flags, 7))
    with pytest.raises(Refused, match="has gone"):
        peers.of(pair[0])


def test_another_users_namespace_is_not_the_node(monkeypatch, pair) -> None:
    peers = peer.Peers()
    monkeypatch.setattr(process_files, "uid_map", lambda _: "         0     100000      65536\n")
    assert not peers.of(pair[0]).is_of_the_node
