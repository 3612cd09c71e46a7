# SPDX-License-Identifier: Apache-2.0
"""A simulated machine with loads on it, and how GPU time that was used is held against what was allowed.

A limit is met within two points over some seconds: the bucket may hold a tenth of a second's worth at either
end of the window, and a launch that was let go runs to its end. The host's clock and the card's are the same
here, so nothing else is excused. Only this host's own stalls are: a measurement during which it was seen to
stall is made once more.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limiter import segment

LONG = os.environ.get("GPULIMIT_TEST_LONG", "") not in ("", "0")
"""Ask for the long variants: more rounds, longer windows."""

WINDOW_S = 10.0 if LONG else 2.5
WARM_S = 0.6
POINTS = 2.0
MS = 1_000_000
QUOTA = {"GPULIMIT_SIM_PROFILE": "small"}


class Host:
    """Watches whether this machine lets sleepers wake on time."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.is_set():
            before = time.monotonic()
            time.sleep(0.002)
            self.worst_ms = max(self.worst_ms, (time.monotonic() - before) * 1e3 - 2)

    def __enter__(self) -> Host:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def stalled(self) -> bool:
        return self.worst_ms > 10


@dataclasses.dataclass
class Machine:
    """A simulated machine with limited processes on it."""

    environ: dict[str, str]
    tenant: str
    start_process: Any
    load_program: Path
    card_program: Path
    _card: Any = None

    def load(self, *options: str, **environ: str) -> Any:
        process = self.start_process([self.load_program, *options], env=self.environ | environ)
        line = process.stdout.readline()
        assert line == "ready\n", line + process.stderr.read()
        return process

    def sample(self) -> list[int]:
        """The time, and each card's busy time, in ns."""
        if self._card is None:
            free = {k: v for k, v in self.environ.items() if k != "LD_PRELOAD"}
            self._card = self.start_process([self.card_program], env=free, stdin=-1)
        self._card.stdin.write("\n")
        self._card.stdin.flush()
        return [int(word) for word in self._card.stdout.readline().split()]

    def shares(self, seconds: float = WINDOW_S) -> list[float]:
        """Percent of time that each card is busy from now on for so long."""
        before = self.sample()
        time.sleep(seconds)
        after = self.sample()
        return [100 * (b - a) / (after[0] - before[0]) for a, b in zip(before[1:], after[1:], strict=True)]

    def books(self) -> segment.Usage:
        return segment.read(self.tenant)


def ended(process: Any) -> dict[str, float]:
    """Wait for a load to end well; return what it saw."""
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, out + err
    words = out.split()
    return dict(zip(words[::2], (float(w) for w in words[1::2]), strict=True))


def held(measure: Callable[[], list[tuple[float, float]]], points: float = POINTS) -> None:
    """Each (share, limit) is within so many points; one more try if this host stalled meanwhile."""
    for attempt in range(2):
        with Host() as host:
            pairs = measure()
        if all(abs(share - limit) <= points for share, limit in pairs):
            return
        if not host.stalled or attempt:
            pytest.fail(f"(share, limit) = {pairs}; the host stalled for up to {host.worst_ms:.0f} ms")
