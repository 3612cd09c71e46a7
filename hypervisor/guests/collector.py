# SPDX-License-Identifier: Apache-2.0
"""Scrapes each guest over its own connection, and keeps each one's last page.

Only the target identifies a guest, never its page. A guest that hangs, lies or floods loses its own metrics
and affects no other guest: the scraper bounds time and bytes, and `sanitizer` bounds the values that are
taken over.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from hypervisor.guests.cardinality import SeriesLimiter
from hypervisor.guests.sanitizer import LIMITS, GuestPage, reading_of
from hypervisor.guests.target import Target
from hypervisor.metrics.snapshot import GuestView
from hypervisor.scraper.dialer import Connector
from hypervisor.scraper.errors import FetchError
from hypervisor.scraper.fetch import Budget, fetch, session
from hypervisor.scraper.scraper import Scraper
from hypervisor.scraper.target_health import ScrapeTiming

logger = logging.getLogger(__name__)
PERIOD_S = 3.25
MAX_PAUSE_S = 30.0
MAX_FETCHES_AT_ONCE = 256
LOOK_S = 1.0
BUDGET = Budget(connect_s=2.0, total_s=5.0, received_bytes=LIMITS.page_bytes, page_bytes=LIMITS.page_bytes)


class TargetSource(Protocol):
    """A source of guests: the cluster, or a file."""

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> Sequence[Target]: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def confirmed_at_s(self) -> float:
        """Latest time.monotonic() at which the targets were known to be right."""

    def reread(self) -> None:
        """Update the targets now, as far as that is up to this process."""

    async def run(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Guest:
    """One machine, over all its starts."""

    target: Target
    known: GuestPage | None = None
    """The last page that certainly comes from this machine."""
    suspect: GuestPage | None = None
    """A page that seems to come from another machine, and the time since when. While it is set, nothing of
    the guest is
    shown: which machine has this address is not known.
    """
    suspect_at_s: float = 0.0
    last_success_at_s: float | None = None
    """Unix time."""
    duration_s: float | None = None
    roster: SeriesLimiter = field(default_factory=SeriesLimiter)
    dropped: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


class GuestCollector:
    """All guests of a node."""

    def __init__(
        self,
        sources: Sequence[TargetSource],
        *,
        pace: ScrapeTiming | None = None,
        budget: Budget = BUDGET,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the collector; it calls `changed` when there is something new to show."""
        self._sources, self._budget, self._changed = sources, budget, changed
        self._guests: dict[tuple[str, str, str], Guest] = {}
        self._scraper: Scraper[Target] = Scraper(
            self._fetch,
            pace=pace or ScrapeTiming(PERIOD_S, MAX_PAUSE_S),
            limits=LIMITS,
            most_at_once=MAX_FETCHES_AT_ONCE,
            changed=self._tried,
        )

    async def run(self) -> None:
        """Follow the sources and scrape the guests until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for source in self._sources:
                    group.create_task(source.run(), name=f"guests of {source.name}")
                while True:
                    self.look()
                    await asyncio.sleep(LOOK_S)
        finally:
            await self._scraper.close()

    def look(self) -> None:
        """Read the sources' targets. If two sources name one machine, the first source wins."""
        wanted: dict[tuple[str, str, str], Target] = {}
        for source in self._sources:
            for target in source.targets:
                wanted.setdefault(target.who, target)
        for who in self._guests.keys() - wanted.keys():
            del self._guests[who]
        for who, target in wanted.items():
            guest = self._guests.setdefault(who, Guest(target))
            if guest.target != target:
                logger.info("%s: now %s", "/".join(who[:2]), target)
                guest.target, guest.known, guest.suspect = target, None, None
            if target.endpoint is None and not guest.failures["no_vsock"]:
                guest.failures["no_vsock"] += 1
                logger.warning("%s/%s is to be asked, but has no vsock", target.namespace, target.name)
        self._scraper.watch([target for target in wanted.values() if target.endpoint is not None])
        self._changed()

    async def _fetch(self, target: Target) -> bytes:
        assert target.endpoint is not None
        headers: dict[str, str] = {}
        tls: ssl.SSLContext | None = None
        if target.token_file or target.ca_file:
            headers, tls = await asyncio.to_thread(credentials, target)
        name = target.server_name or target.name
        connector = Connector(target.endpoint, netns=target.netns, tls=tls, server_name=name)
        async with session(connector) as client:
            return await fetch(client, "http://guest/metrics", self._budget, headers=headers)

    def _tried(self, target: Target) -> None:
        """Handle the end of a scrape."""
        guest = self._guests.get(target.who)
        host = self._scraper.hosts.get(target)
        if guest is None or host is None or guest.target != target:
            return
        guest.duration_s = host.duration_s
        if host.failures:
            guest.failures[host.reason] += 1
        elif host.page is not None:
            guest.last_success_at_s = time.time()
            self._take(guest, reading_of(host.page))
        self._changed()

    def _take(self, guest: Guest, reading: GuestPage) -> None:
        """Take over a guest's page, unless it may come from another machine that now has the address.

        An unchanged list of targets confirms a restart of the same machine, and nothing more: the list may be
        late. Another machine's page is taken over once the list has changed.
        """
        guest.dropped.update(reading.dropped)
        if guest.known is not None and reading.is_of_another_machine(guest.known):
            if guest.suspect is None or reading.is_of_another_machine(guest.suspect):
                guest.suspect_at_s = time.monotonic()
                self._say_suspicion(guest, reading)
            guest.suspect = reading
            is_confirmed = self._confirmed_at_s(guest.target) >= guest.suspect_at_s
            if self._is_surely_another(guest, reading) or not is_confirmed:
                guest.dropped["unconfirmed"] += sum(len(gpu.values) for gpu in reading.gpus)
                return
        gpus = guest.roster.admitted(reading.gpus, time.monotonic())
        left_out = len(reading.gpus) - len(gpus)
        if left_out:
            guest.dropped["too_many_gpus"] += left_out
        guest.known, guest.suspect = replace(reading, gpus=gpus), None

    def _is_surely_another(self, guest: Guest, reading: GuestPage) -> bool:
        """True if a page cannot come from a restart of this guest: other GPUs, or another guest's boot id."""
        assert guest.known is not None
        return reading.has_other_gpus(guest.known) or any(
            reading.is_same_start(other.known)
            for other in self._guests.values()
            if other is not guest and other.known is not None
        )

    def _say_suspicion(self, guest: Guest, reading: GuestPage) -> None:
        if self._is_surely_another(guest, reading):
            logger.warning(
                "%s: another machine answers there: nothing is shown of it until the list of guests says so",
                guest.target,
            )

    def _confirmed_at_s(self, target: Target) -> float:
        return max((s.confirmed_at_s for s in self._sources if s.name == target.source), default=0.0)

    def views(self) -> tuple[GuestView, ...]:
        """Return all guests, by name."""
        return tuple(self._view(guest) for _, guest in sorted(self._guests.items()))

    def _view(self, guest: Guest) -> GuestView:
        host = self._scraper.hosts.get(guest.target)
        is_shown = host is not None and host.page is not None and guest.suspect is None
        reading = guest.known if is_shown and guest.known is not None else GuestPage()
        return GuestView(
            namespace=guest.target.namespace,
            name=guest.target.name,
            node=guest.target.node,
            is_up=host is not None and host.state == "up",
            duration_s=guest.duration_s,
            last_success_at_s=guest.last_success_at_s,
            agent_status=reading.status,
            gpus=reading.gpus,
            dropped=dict(guest.dropped),
            failures=dict(guest.failures),
        )

    def counts(self) -> dict[str, Mapping[str, int]]:
        """Return the sources' counters, by metric name and source."""
        return {
            "guest_source_up": {source.name: int(source.is_up) for source in self._sources},
            "guest_targets": {source.name: len(source.targets) for source in self._sources},
        }


def credentials(target: Target) -> tuple[dict[str, str], ssl.SSLContext | None]:
    """Return headers and TLS context for a guest. The files are read each time, since they are renewed.

    Raises FetchError if a file cannot be read.
    """
    try:
        headers = {}
        if target.token_file:
            token = Path(target.token_file).read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        tls = ssl.create_default_context(cafile=target.ca_file) if target.ca_file else None
    except (OSError, ValueError) as error:
        raise FetchError("tls", f"{target}: {error}") from error
    return headers, tls
