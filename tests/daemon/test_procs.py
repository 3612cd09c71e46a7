# SPDX-License-Identifier: Apache-2.0
"""Who a process at the other end of a socket is."""

from __future__ import annotations

import os
import socket

import pytest

from hypervisor.host import processes as procs
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
def test_only_what_runs_in_the_daemons_own_container_counts_as_plain(monkeypatch, own, other, seen) -> None:
    monkeypatch.setattr(procs, "cgroup_text", lambda pid: text(*(own if pid == "self" else other)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = procs.peer_of(ours)
        key, origin, pidfd = procs.Processes().identify(peer, ours)
        os.close(pidfd)
    assert key.host_pid == os.getpid()
    assert Membership(origin.pod_uid, origin.container_id) == Membership(*seen)
