# SPDX-License-Identifier: Apache-2.0
"""Ensures that one collector per node scrapes; others wait until it ends. The kernel releases its file
lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from hypervisor.errors import ConfigError

PAUSE_S = 0.5


class Lock:
    """A lock file that one process holds."""

    def __init__(self, path: str) -> None:
        """Open the file. Without a path the lock is always free. Raises ConfigError."""
        self._file = -1
        self.is_held = not path
        if path:
            try:
                Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise ConfigError("lock", "", f"{path}: {error.strerror}") from error

    def take(self) -> bool:
        """Try to lock; return True if this process holds the lock."""
        if not self.is_held:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self.is_held = True
        return True

    async def wait(self) -> None:
        """Wait until this process holds the lock."""
        while not self.take():
            await asyncio.sleep(PAUSE_S)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
