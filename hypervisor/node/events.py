# SPDX-License-Identifier: Apache-2.0
"""Keeps recent events for operators, and counts events by kind for metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

logger = logging.getLogger(__name__)
MAX_EVENTS = 256
MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log."""

    number: int
    at_ns: int
    """CLOCK_REALTIME."""
    kind: str
    tenant: str
    text: str


class EventLog:
    """The newest events, and a count of all by kind."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.counts: Counter[str] = Counter()
        self._logged_ns: dict[tuple[str, str], int] = {}

    def add(self, kind: str, text: str, *, now_ns: int, tenant: str = "") -> Event:
        """Add an event and return it."""
        self.counts[kind] += 1
        event = Event(self.counts.total(), now_ns, kind, tenant, text)
        self._events.append(event)
        return event

    def may_log(self, kind: str, tenant: str, *, now_ns: int) -> bool:
        """True if no such event was logged within the last minute."""
        if now_ns - self._logged_ns.get((kind, tenant), -MINUTE_NS) < MINUTE_NS:
            return False
        if len(self._logged_ns) >= MAX_EVENTS:
            self._logged_ns.clear()
        self._logged_ns[kind, tenant] = now_ns
        return True

    def newest(self, count: int = MAX_EVENTS) -> Iterable[Event]:
        """Return the newest events, oldest first."""
        return tuple(self._events)[-count:]


def record_event(
    events: EventLog, kind: str, text: str, *, tenant: str = "", level: int = logging.INFO
) -> None:
    """Record an event for operators and metrics, and log it; a repeated problem is logged once a minute."""
    now_ns = time.time_ns()
    events.add(kind, text, now_ns=now_ns, tenant=tenant)
    if level < logging.WARNING or events.may_log(kind, tenant, now_ns=now_ns):
        logger.log(level, "%s: %s%s", kind, f"{tenant}: " if tenant else "", text)
