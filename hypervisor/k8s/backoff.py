# SPDX-License-Identifier: Apache-2.0
"""Delay before the next try."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Doubles from try to try, and is drawn at random so that a cluster's nodes do not come all at once."""

    def __init__(
        self, least_s: float = 0.2, most_s: float = 30.0, draw: Callable[[], float] = random.random
    ) -> None:
        self._least_s, self._most_s, self._draw = least_s, most_s, draw
        self._tries = 0

    def next_s(self) -> float:
        """Return how long to wait now: between half and all of what this try may cost, in seconds."""
        ceiling = min(self._most_s, self._least_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return ceiling * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """It has worked."""
        self._tries = 0
