# SPDX-License-Identifier: Apache-2.0
"""Writes one state file on a thread of its own, so that a busy disk does not stop the event loop.

Only the newest text counts: one that is replaced before its turn is never written.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hypervisor.errors import StateError
from hypervisor.node.state_file import StateFile


class StateWriter:
    """`done` is told of each write, with the reason of a failure or "". It runs on the thread."""

    def __init__(self, file: StateFile, done: Callable[[str], None]) -> None:
        self._file = file
        self._done = done
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._lock = threading.Lock()
        self._wanted: str | None = None
        """Text to write next."""
        self._newest: str | None = None
        """Text that was asked for last; None: or it could not be written."""
        self._writing: Future[None] | None = None

    def write(self, text: str) -> None:
        """Have the file say this, soon. Event loop only."""
        with self._lock:
            if text == self._newest:
                return
            self._wanted = self._newest = text
            if self._writing is None:
                self._writing = self._pool.submit(self._run)

    async def settled(self, within_s: float) -> None:
        """Return when all is written, or after a time."""
        writing = self._writing
        if writing is not None:
            await asyncio.wait([asyncio.wrap_future(writing)], timeout=within_s)

    def close(self) -> None:
        """Write the rest, and end the thread."""
        self._pool.shutdown(wait=True)

    def _run(self) -> None:
        while True:
            with self._lock:
                text, self._wanted = self._wanted, None
                if text is None:
                    self._writing = None
                    return
            try:
                self._file.write(text, is_durable=False)
            except StateError as error:
                with self._lock:
                    self._newest = self._wanted  # what failed can be asked for again
                self._done(str(error))
            else:
                self._done("")
