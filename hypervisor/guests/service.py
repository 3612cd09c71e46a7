# SPDX-License-Identifier: Apache-2.0
"""Combines sources, collector and lock, for the program that serves the page: guest-collector, or the
daemon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypervisor.guests.collector import BUDGET, MAX_PAUSE_S, PERIOD_S, GuestCollector, TargetSource
from hypervisor.guests.guest_file import GuestFile
from hypervisor.guests.instance_lock import Lock
from hypervisor.guests.kubevirt import KubeVirt
from hypervisor.k8s.access import api_server
from hypervisor.k8s.client import Client
from hypervisor.metrics.snapshot import Snapshot
from hypervisor.scraper.target_health import ScrapeTiming

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KubeVirtConfig:
    """Access to KubeVirt's machines, and settings for scraping its guests."""

    node: str
    api: str = ""
    token_file: str = ""
    ca_file: str = ""
    port: int = 9402
    guest_token_file: str = ""
    guest_ca_file: str = ""
    guest_server_name: str = ""


class GuestService:
    """Collects the guests of this node."""

    def __init__(
        self,
        *,
        path: str = "",
        cluster: KubeVirtConfig | None = None,
        lock: str = "",
        period_s: float = PERIOD_S,
        timeout_s: float = BUDGET.total_s,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the service; `path` is a file that names guests. Raises ConfigError."""
        self._lock = Lock(lock)
        self._sources: list[TargetSource] = [GuestFile(path)] if path else []
        if cluster is not None:
            self._sources.append(kubevirt_of(cluster))
        self.collector = GuestCollector(
            self._sources,
            pace=ScrapeTiming(period_s, max(period_s, MAX_PAUSE_S)),
            budget=replace(BUDGET, connect_s=min(BUDGET.connect_s, timeout_s), total_s=timeout_s),
            changed=changed,
        )

    def reread(self) -> None:
        """Update the lists of guests now."""
        for source in self._sources:
            source.reread()

    @property
    def is_active(self) -> bool:
        """True if this collector holds the lock and scrapes the guests."""
        return self._lock.is_held

    async def run(self) -> None:
        """Wait for the lock, then scrape the guests until cancelled."""
        try:
            if not self._lock.take():
                logger.warning("another collector asks on this node; waiting for it to end")
                await self._lock.wait()
            logger.info("asking guests")
            await self.collector.run()
        finally:
            for source in self._sources:
                await source.close()
            self._lock.close()

    def added_to(self, snapshot: Snapshot) -> Snapshot:
        """Return a copy of a snapshot with the guests added."""
        return replace(
            snapshot,
            guests=self.collector.views() if self.is_active else (),
            counts={**snapshot.counts, **(self.collector.counts() if self.is_active else {})},
            values={**snapshot.values, "guest_collector_active": int(self.is_active)},
        )

    def reasons_not_ready(self) -> list[str]:
        """Return one line for each source whose list is not fresh.

        A collector that waits for the lock is ready: a rollout must not wait for it.
        """
        if not self.is_active:
            return []
        sources = self.collector.counts()["guest_source_up"]
        return [f"{name}: the list of guests is not fresh" for name, is_up in sources.items() if not is_up]


def kubevirt_of(cluster: KubeVirtConfig) -> KubeVirt:
    """Return the list of KubeVirt's guests. Raises ConfigError."""
    return KubeVirt(
        Client(api_server(cluster.api, cluster.token_file, cluster.ca_file)),
        node=cluster.node,
        port=cluster.port,
        token_file=cluster.guest_token_file,
        ca_file=cluster.guest_ca_file,
        server_name=cluster.guest_server_name,
    )
