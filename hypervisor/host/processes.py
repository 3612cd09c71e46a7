# SPDX-License-Identifier: Apache-2.0
"""Watches registered processes, and reports each one that has ended."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

from hypervisor.model import ProcessKey


def has_ended(pidfd: int) -> bool:
    """True if the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class Processes:
    """The registered processes."""

    def __init__(self) -> None:
        self._watched: dict[ProcessKey, int] = {}

    def watch(self, key: ProcessKey, pidfd: int, died: Callable[[ProcessKey], None]) -> None:
        """Call `died` once the process has gone; the pidfd stays the caller's. Raises OSError."""
        if key in self._watched:
            return
        self._watched[key] = own = os.dup(pidfd)
        asyncio.get_running_loop().add_reader(own, self._ended, key, died)

    def ended(self) -> list[ProcessKey]:
        """Return the watched processes that have ended and of which `died` has not been called yet."""
        return [key for key, pidfd in self._watched.items() if has_ended(pidfd)]

    def _ended(self, key: ProcessKey, died: Callable[[ProcessKey], None]) -> None:
        self.unwatch(key)
        died(key)

    def unwatch(self, key: ProcessKey) -> None:
        """Stop watching."""
        pidfd = self._watched.pop(key, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Stop watching all."""
        for key in list(self._watched):
            self.unwatch(key)
