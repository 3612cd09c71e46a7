# SPDX-License-Identifier: Apache-2.0
"""Tenants whose usage segments cannot be used now, and the reasons. Event loop only."""

from __future__ import annotations

import logging

from hypervisor.model import TenantName
from hypervisor.node.events import EventLog, record_event


class SegmentHealth:
    """Reasons by tenant. The segment of a tenant that is in none of the mappings is usable."""

    def __init__(self, events: EventLog) -> None:
        self.corrupt: dict[TenantName, str] = {}
        """The tenant's processes have damaged the segment: it must be replaced."""
        self.unreadable: dict[TenantName, str] = {}
        """The dispatcher thread cannot read the segment at the moment."""
        self.unopened: dict[TenantName, str] = {}
        """Tenants of an earlier daemon whose segment cannot be opened now. They are neither admitted to nor
        forgotten.
        """
        self._events = events

    def mark_corrupt(self, name: TenantName, reason: str) -> None:
        """Note that a tenant's segment is damaged."""
        self.corrupt[name] = reason
        text = f"gets no GPU time: {reason}"
        record_event(self._events, "books_spoiled", text, tenant=name, level=logging.ERROR)

    def mark_readable(self, name: TenantName, why_not: str) -> None:
        """Note that a tenant's segment cannot be read now, or can be again if `why_not` is empty."""
        if why_not:
            self.unreadable[name] = why_not
            text = f"gets no GPU time: {why_not}"
            record_event(self._events, "books_unreadable", text, tenant=name, level=logging.WARNING)
        elif self.unreadable.pop(name, None) is not None:
            record_event(self._events, "books_readable", "its books can be read again", tenant=name)

    def renewed(self, name: TenantName) -> None:
        """Note that a tenant has a new segment in place of a damaged one."""
        self.corrupt.pop(name, None)

    def forget(self, name: TenantName) -> None:
        """Drop a tenant that is gone."""
        self.corrupt.pop(name, None)
        self.unreadable.pop(name, None)

    def problem_of(self, name: TenantName) -> str:
        """Return the reason why a tenant's segment cannot be used; "" if it can be."""
        return self.corrupt.get(name) or self.unreadable.get(name) or self.unopened.get(name) or ""
