# SPDX-License-Identifier: Apache-2.0
"""Counts files in shared memory that could not be used as segments, by reason."""

from __future__ import annotations

import logging
from collections import Counter

from hypervisor.node.events import EventLog, record_event

REJECT_REASONS = {"plain file": "type", "belongs to": "owner", "bytes": "size", "layout": "layout"}
"""Label of the metric, by a phrase in the reason."""


class RejectedSegments:
    """Counts since the daemon started."""

    def __init__(self, events: EventLog) -> None:
        self.counts: Counter[str] = Counter()
        self._events = events

    def set_aside(self, name: str, reason: str) -> None:
        """Count a file that was moved out of the way."""
        self.counts[label_of(reason)] += 1
        record_event(self._events, "segment_set_aside", f"{name}: {reason}", level=logging.WARNING)


def label_of(reason: str) -> str:
    """Return the metric's label for a reason."""
    return next((label for phrase, label in REJECT_REASONS.items() if phrase in reason), "other")
