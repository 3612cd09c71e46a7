# SPDX-License-Identifier: Apache-2.0
"""Where a process runs, remembered for a moment."""

from __future__ import annotations

import os
import subprocess
import sys

from hypervisor.host.cgroup import Membership
from hypervisor.host.control_groups import ControlGroups
from hypervisor.host.whereabouts import (
    MAX_REMEMBERED_EVENTS,
    REMEMBERED_S,
    UNKNOWN,
    Remembered,
    Whereabouts,
    named,
)


def test_a_process_beside_the_daemon_is_on_the_node_and_one_that_has_ended_is_unknown() -> None:
    whereabouts = Whereabouts(ControlGroups())
    assert whereabouts.of(os.getpid()) == ""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert whereabouts.of(child.pid) == UNKNOWN
    assert whereabouts.of(child.pid) == UNKNOWN


def test_pods_and_containers_have_accounts_of_their_own() -> None:
    assert named(Membership(pod_uid="p", container_id="c" * 64)) == " of pod p"
    assert named(Membership(container_id="c" * 64)) == f" of container {'c' * 12}"
    assert named(Membership()) == ""


def test_an_answer_is_good_for_a_moment_and_a_bounded_number_is_kept() -> None:
    now_s = [0.0]
    remembered: Remembered[int, int] = Remembered(lambda: now_s[0])
    answers = iter(range(1, 1 << 20))

    def find() -> int:
        return next(answers)

    assert [remembered.of(key, find) for key in (1, 1, 2)] == [1, 1, 2]
    now_s[0] = REMEMBERED_S
    assert remembered.of(1, find) == 3
    for key in range(2 * MAX_REMEMBERED_EVENTS):
        remembered.of(key, find)
        assert len(remembered._known) <= MAX_REMEMBERED_EVENTS
