# SPDX-License-Identifier: Apache-2.0
"""Changes the quota of a running tenant in its usage segment; only the segment's owner can.

The change takes effect at the next allocation or launch; threads that wait for GPU time are woken.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from limiter import segment
from limiter._native import ffi, lib

UNCHANGED_BYTES = 2**64 - 1


def is_under_a_daemon(tenant: str) -> bool:
    """True if a daemon's policy holds for the tenant, even while that daemon is away.

    The limits in the usage segment are then not used.
    """
    return (segment.DIRECTORY / f"{segment.POLICY_PREFIX}{tenant}").exists()


class LiveTenant:
    """A writable view of one tenant's segment. Use as a context manager.

    Raises the exceptions of limiter.segment.read_file if the segment is missing or has another layout, and
    PermissionError if it belongs to another user.
    """

    def __init__(self, tenant: str, path: Path | None = None) -> None:
        self.path = path or segment.path_of(tenant)
        segment.read_file(self.path)
        fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, ffi.sizeof("struct gl_usage"))
        finally:
            os.close(fd)
        self._usage: Any = ffi.from_buffer("struct gl_usage *", self._map, require_writable=True)

    def __enter__(self) -> LiveTenant:
        return self

    def __exit__(self, *_: object) -> None:
        ffi.release(self._usage)
        self._map.close()

    def set(self, device: int, *, memory_bytes: int = UNCHANGED_BYTES, compute_percent: int = 0) -> None:
        """Set limits of the segment's device entry; 0 percent and UNCHANGED_BYTES keep a limit."""
        if lib.gl_live_set(self._usage, device, memory_bytes, compute_percent):
            raise ValueError(f"device entry {device}, {compute_percent} percent: no such entry or not 1..100")

    def suspend(self, device: int, *, suspended: bool) -> None:
        """Suspend launches on a device, or resume them."""
        if lib.gl_live_suspend(self._usage, device, int(suspended)):
            raise ValueError(f"device entry {device}: no such entry")

    def spent_ns(self, device: int) -> int:
        """GPU time charged to the tenant on the device since the segment was made."""
        return int(self._usage.device[device].spent_ns)
