# SPDX-License-Identifier: Apache-2.0
"""Names of users for accounts: all numbers that one user may take, by /etc/subuid, have one.

A user without rights can run processes under thousands of numbers in user namespaces. Each number would
otherwise have bounds of its own.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

SUBUID = Path("/etc/subuid")
MAX_BYTES = 1 << 20
CHECK_S = 1.0
ROOTS = ("root", "0")
"""Owners whose ranges no user can take as he likes: root gives them to containers."""


class SubordinateUsers:
    """The ranges in /etc/subuid, read again when the file has changed."""

    def __init__(self, path: Path = SUBUID, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._check_at_s = -CHECK_S
        self._stamp: tuple[int, int] | None = None
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, str]] = []

    def name_of(self, uid: int) -> str:
        """Return "user 1000", or "subordinate users of alice" for each of a range of hers."""
        self._refresh()
        index = bisect_right(self._starts, uid) - 1
        if index >= 0:
            start, count, owner = self._ranges[index]
            if uid < start + count:
                return f"subordinate users of {owner}"
        return f"user {uid}"

    def _refresh(self) -> None:
        now_s = self._clock()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_S
        try:
            found = os.stat(self._path)  # noqa: PTH116 - by the second
            stamp = found.st_mtime_ns, found.st_ino
            if stamp == self._stamp:
                return
            with self._path.open(encoding="utf-8", errors="replace") as file:
                text = file.read(MAX_BYTES)
        except OSError:
            stamp, text = None, ""
        self._stamp = stamp
        self._ranges = ranges_in(text)
        self._starts = [start for start, _, _ in self._ranges]


def ranges_in(text: str) -> list[tuple[int, int, str]]:
    """Return (first number, count, owner) of each line that has them, in order."""
    found = []
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        start, _, count = rest.partition(":")
        if owner and owner not in ROOTS and start.isdecimal() and count.isdecimal():
            found.append((int(start), int(count), owner))
    return sorted(found)
