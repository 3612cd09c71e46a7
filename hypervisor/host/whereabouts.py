# SPDX-License-Identifier: Apache-2.0
"""Tells cheaply where a process runs, to charge its connections; what was found is good for a moment.

It is good enough to say whose bound a connection counts against, and not whose word is believed: a number may
go over to another process meanwhile. `peer` decides that, at each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hypervisor.errors import Refused
from hypervisor.host import process_files
from hypervisor.host.cgroup import Membership
from hypervisor.host.control_groups import ControlGroups

REMEMBERED_S = 0.5
MAX_REMEMBERED_EVENTS = 4096
UNKNOWN = ", unknown processes"
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """Answers to questions, each good for REMEMBERED_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Key, tuple[float, Value]] = {}

    def of(self, key: Key, find: Callable[[], Value]) -> Value:
        """Return what is remembered, or what `find` returns now."""
        now_s = self._clock()
        known = self._known.get(key)
        if known is not None and known[0] > now_s:
            return known[1]
        if len(self._known) >= MAX_REMEMBERED_EVENTS:
            self._known.clear()
        found = find()
        self._known[key] = now_s + REMEMBERED_S, found
        return found


class Whereabouts:
    """Tells where processes run, as part of an account's name."""

    def __init__(self, control_groups: ControlGroups) -> None:
        self._control_groups = control_groups
        self._places: Remembered[str, str] = Remembered()
        """By the text of a process's control groups."""

    def of(self, pid: int) -> str:
        """Return " of pod …" or " of container …"; "": on the node itself. A process that has ended has left
        its connection to others: these share an account of their user.
        """
        try:
            text = process_files.cgroup_text(pid)
            place = self._places.of(text, lambda: named(self._control_groups.place(text).member))
            # The control group of a process that has ended may say that it ran on the node.
            return UNKNOWN if not place and process_files.stat_of(pid).is_ending else place
        except (OSError, Refused):
            return UNKNOWN


def named(member: Membership) -> str:
    """Return a place, if it is not the node itself: a container has users of its own."""
    if member.pod_uid is not None:
        return f" of pod {member.pod_uid}"
    return f" of container {member.container_id[:12]}" if member.container_id is not None else ""
