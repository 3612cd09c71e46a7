# SPDX-License-Identifier: Apache-2.0
"""Shares the event loop between users: work of each is done in turn, a little at a time.

A user that brings much work waits for it himself; the work of any other user waits for one piece of each at
most. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)
MAX_SLICE_S = 0.002
"""Time after which other work of the loop is done."""


class FairQueue:
    """Pieces of work by user, in the order in which each user's came."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        self._is_scheduled = False

    def put(self, user: str, work: Callable[[], None]) -> None:
        """Do a piece of work when it is this user's turn."""
        self._queues.setdefault(user, deque()).append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def waiting(self, user: str) -> int:
        """Return how many pieces of a user's work wait."""
        return len(self._queues.get(user, ()))

    def _run(self) -> None:
        end_s = time.monotonic() + MAX_SLICE_S
        self._is_scheduled = False
        for user in list(self._queues):
            queue = self._queues.pop(user)
            work = queue.popleft()
            if queue:
                self._queues[user] = queue  # behind the others
            try:
                work()
            except Exception:
                logger.exception("work of %s failed", user)
            if time.monotonic() > end_s:
                break
        if self._queues and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)
