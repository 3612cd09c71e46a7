# SPDX-License-Identifier: Apache-2.0
"""Shares the event loop between users: one piece of work of each user in turn.

A user with much work waits for it. The work of any other user waits at most for one piece of each user. Event
loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)
MAX_SLICE_S = 0.002
"""Time after which the event loop runs other tasks."""


class FairQueue:
    """Pieces of work by user, each user's in the order of arrival."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        self._is_scheduled = False

    def put(self, user: str, work: Callable[[], None]) -> None:
        """Queue a piece of work until this user's turn."""
        self._queues.setdefault(user, deque()).append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def waiting(self, user: str) -> int:
        """Return the number of waiting pieces of a user's work."""
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
