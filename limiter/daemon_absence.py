# SPDX-License-Identifier: Apache-2.0
"""Explains an absent daemon: the consequence for programs, and the remedy."""

from __future__ import annotations

import os
import time

from limiter import segment
from limiter._native import ffi, lib
from limiter.daemon_client import NoDaemon

CLOSED = "programs that start now wait for it (GPULIMIT_WAIT, 10 s), and then get no GPU"
START = "start it: systemctl start gpulimit, or gpulimit daemon"
FRESH_NS = 5_000_000_000


def lines_about(error: NoDaemon) -> list[str]:
    """Return the lines about a daemon that does not answer."""
    if error.kind == "silent":
        return [f"daemon: {error}"]
    return [f"daemon: {meaning_of(error)}", *([START] if error.kind == "refused" else elsewhere())]


def meaning_of(error: NoDaemon) -> str:
    """Return the consequence for programs that start now: the environment's quota, or no GPU."""
    if error.kind == "silent":
        return str(error)
    if error.kind == "refused":
        return f"not running, but its socket {error.path} is there: {CLOSED}"
    if os.environ.get("GPULIMIT_SOCKET"):
        return f"not running: there is no socket {error.path}, which GPULIMIT_SOCKET names: {CLOSED}"
    return f"none (no socket {error.path}); quotas come from each program's environment"


def elsewhere() -> list[str]:
    """Return a line about a daemon of this node that has another socket, if there is one."""
    pid = running_pid()
    if pid is None:
        return []
    return [
        f"a daemon with another socket runs on this node (pid {pid}): set GPULIMIT_SOCKET to its --socket"
    ]


def running_pid() -> int | None:
    """Return the pid of the daemon that updates the node's state segment; None if there is none."""
    size = ffi.sizeof("struct gl_state")
    try:
        data = (segment.DIRECTORY / segment.STATE_NAME).read_bytes()
    except OSError:
        return None
    if len(data) != size:
        return None
    state = ffi.from_buffer("struct gl_state *", data)
    is_fresh = 0 <= time.monotonic_ns() - state.heartbeat_ns < FRESH_NS
    is_ours = state.header.magic == lib.GL_STATE_MAGIC and state.header.version == lib.GL_LAYOUT_VERSION
    return int(state.daemon_pid) if is_fresh and is_ours else None
