# SPDX-License-Identifier: Apache-2.0
"""A clock that goes only while the event loop runs.

A node that is suspended, a process that is stopped and a loop that is held up see nothing of NVML meanwhile.
That silence is not NVML's, so deadlines for NVML are measured on this clock.
"""

from __future__ import annotations

import asyncio
import time

TICK_S = 0.25
MAX_STEP_S = 2 * TICK_S
"""Most that the clock advances between two ticks, however long the loop did not run."""


class LoopClock:
    """Event loop only. `run` must be going for it to advance past one step."""

    def __init__(self) -> None:
        self._advanced_s = 0.0
        self._ticked_at_s = time.monotonic()

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self._advanced_s = self.now_s()
            self._ticked_at_s = time.monotonic()

    def now_s(self) -> float:
        """Return seconds, of which the loop has run about all."""
        return self._advanced_s + min(time.monotonic() - self._ticked_at_s, MAX_STEP_S)
