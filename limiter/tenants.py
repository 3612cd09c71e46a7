# SPDX-License-Identifier: Apache-2.0
"""The tenants of this machine: reads all segments, and removes those without a living process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from limiter import segment
from limiter.errors import LayoutMismatch
from limiter.segment import Usage

MADE_UP = re.compile(r"run-(\d+)-(\d+)")
"""Names that `gpulimit run` generates: pid and start time of the command."""


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """All readable segments, and the reasons that the others are not."""

    at_ns: int
    """CLOCK_MONOTONIC."""
    usages: dict[str, Usage]
    unreadable: dict[str, str]


def snapshot() -> TenantSnapshot:
    """Read every tenant's segment."""
    usages, unreadable = {}, {}
    at_ns = time.monotonic_ns()
    for tenant in segment.tenants():
        try:
            usages[tenant] = segment.read_listed(tenant)
        except FileNotFoundError:
            continue  # removed between listing and reading
        except LayoutMismatch as error:
            unreadable[tenant] = f"{error}; another version of gpulimit made it, or it is damaged"
        except OSError as error:
            unreadable[tenant] = str(error)
    return TenantSnapshot(at_ns, usages, unreadable)


def made_up_name() -> str:
    """Return a unique name for this command's tenant: a reused pid has another start time."""
    return f"run-{os.getpid()}-{start_ticks(os.getpid())}"


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def remove_if_unused(tenant: str) -> bool:
    """Remove a tenant's segment unless one of its processes lives; return True if it is gone."""
    path = segment.path_of(tenant)
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return not path.exists()
    try:
        # Processes join under the lock of byte 0, so no process can be joining while it is held. Living
        # processes hold the locks of their slots.
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 0, os.SEEK_SET)
        if os.fstat(fd).st_nlink:  # it still has its name
            path.unlink(missing_ok=True)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def remove_abandoned() -> None:
    """Remove the segments of earlier `gpulimit run` commands that were killed."""
    for tenant in segment.tenants():
        match = MADE_UP.fullmatch(tenant)
        if match and start_ticks(int(match[1])) != int(match[2]):
            with contextlib.suppress(OSError):
                remove_if_unused(tenant)
