# SPDX-License-Identifier: Apache-2.0
"""Opens the segments of tenants and of the node, or makes them, and removes those without a living process.

Books in which a process lives are never replaced: what it holds is written there and nowhere else. Where they
cannot be used, their tenant's processes are refused until all that are in them have ended.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from limiter._native import ffi, lib

from hypervisor.errors import SegmentError, SegmentHeld
from hypervisor.shm.files import MAX_TRIES, Found, ShmFiles, error_of, refuse_living, told_as_ours
from hypervisor.shm.segments import DIRECTORY, POLICY, USAGE, PolicySegment, StateSegment, UsageSegment
from limiter import segment

HELD_BYTE = segment.HEADER_SIZE
"""The byte of a usage segment that its daemon locks: see gl_node_hold."""
WRONG_HEADER = "its header is not of this layout"


class Segments:
    """Makes and opens them. `told(name, reason)` hears of each file that was in the way."""

    def __init__(self, told: Callable[[str, str], None]) -> None:
        self._files = ShmFiles(told)

    def usage(self, tenant: str, uid: int) -> UsageSegment:
        """Open a tenant's usage segment if it can be used, else make a new one that belongs to `uid`."""
        name = USAGE + tenant
        for _ in range(MAX_TRIES):
            found = self._files.open(name, segment.SIZE, owner=uid)
            opened = UsageSegment(tenant, found.fd) if found.fd >= 0 else None
            if opened is not None:
                found = checked(opened, opened.check_header)
                if not found.obstacle:
                    return held(opened)
            fd = self._files.make(
                name, segment.SIZE, mode=0o600, owner=uid, room=segment.SLOTS_OFFSET, instead=found
            )
            if fd is not None:
                return held(begun(UsageSegment(tenant, fd)))
        raise SegmentError(f"{DIRECTORY / name}: a process replaces it without pause")

    def policy(self, tenant: str) -> PolicySegment:
        """Open the policy of an earlier daemon, which processes may still have mapped, or make one."""
        name, size, owner = POLICY + tenant, ffi.sizeof("struct gl_policy"), os.geteuid()
        for _ in range(MAX_TRIES):
            found = self._files.open(name, size, owner=owner)
            opened = PolicySegment(tenant, found.fd) if found.fd >= 0 else None
            if opened is not None:
                found = checked(opened, opened.check_header)
                if not found.obstacle:
                    return opened
            fd = self._files.make(name, size, mode=0o644, owner=owner, room=size, instead=found)
            if fd is not None:
                return begun(PolicySegment(tenant, fd))
        raise SegmentError(f"{DIRECTORY / name}: a process replaces it without pause")

    def state(self, name: str) -> StateSegment:
        """Make the node's segment, or begin an earlier one again. Raises SegmentHeld if it is in use."""
        lock = self._files.lock(name.removeprefix(segment.NAME_PREFIX))
        try:
            made = StateSegment(name, self._state_fd(name), lock)
        except SegmentError:
            os.close(lock)
            raise
        return begun(made)

    def _state_fd(self, name: str) -> int:
        size, owner = ffi.sizeof("struct gl_state"), os.geteuid()
        for _ in range(MAX_TRIES):
            found = self._files.open(name, size, owner=owner)
            if found.fd >= 0:
                return found.fd
            fd = self._files.make(name, size, mode=0o644, owner=owner, room=size, instead=found)
            if fd is not None:
                return fd
        raise SegmentError(f"{DIRECTORY / name}: a process replaces it without pause")

    def has_usage(self, tenant: str) -> bool:
        """True if a tenant has left a usage segment, fit for use or not."""
        return os.path.lexists(DIRECTORY / (USAGE + tenant))

    def remove(self, usage: UsageSegment) -> bool:
        """Remove a tenant's segments unless a process lives in them or is about to; True: they have gone."""
        if not self._files.unlink_dead(usage.name, usage.fd):
            return False
        self._files.unlink(POLICY + usage.tenant)
        return True


T = TypeVar("T", UsageSegment, PolicySegment, StateSegment)


def begun(made: T) -> T:
    """Give a new segment its header and return it; close it where that fails."""
    try:
        made.begin()
    except SegmentError:
        made.close()
        raise
    return made


def checked(opened: UsageSegment | PolicySegment, check_header: Callable[[], bool]) -> Found:
    """Return an open segment's file as fit for use, or, closed, as an obstacle. Raises SegmentError."""
    is_right = False
    try:
        with told_as_ours(DIRECTORY / opened.name):
            is_right = check_header()
            if is_right:
                return Found(opened.fd)
            if isinstance(opened, UsageSegment):
                refuse_living(DIRECTORY / opened.name, opened.fd, WRONG_HEADER)
            return Found(obstacle=WRONG_HEADER, inode=os.fstat(opened.fd).st_ino)
    finally:
        if not is_right:
            opened.close()


def held(opened: UsageSegment) -> UsageSegment:
    """Keep the file from being taken for abandoned; close it where another daemon does already."""
    result = lib.gl_node_hold(opened.fd)
    if result >= 0:
        return opened
    try:
        with told_as_ours(DIRECTORY / opened.name):
            _, pid = segment.holder_of(opened.fd, HELD_BYTE, 1)
    finally:
        opened.close()
    if result in (-errno.EAGAIN, -errno.EACCES):
        holder = f"process {pid}" if pid else "a process that cannot be seen from here"
        raise SegmentHeld(
            f"tenant {opened.tenant} is served by another daemon of this machine, {holder}: "
            f"it holds {DIRECTORY / opened.name}; take another name"
        )
    raise error_of(DIRECTORY / opened.name, OSError(-result, os.strerror(-result)))
