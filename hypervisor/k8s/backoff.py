# SPDX-License-Identifier: Apache-2.0
"""Computes the delay before the next try."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """A delay that doubles with each try. It is random, so that nodes do not retry together."""

    def __init__(
        self, least_s: float = 0.2, most_s: float = 30.0, draw: Callable[[], float] = random.random
    ) -> None:
        self._least_s, self._most_s, self._draw = least_s, most_s, draw
        self._tries = 0

    def next_s(self) -> float:
        """Return the seconds to wait now: between half of the current delay and all of it."""
        ceiling = min(self._most_s, self._least_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return ceiling * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """Start again with the shortest delay, after a success."""
        self._tries = 0
