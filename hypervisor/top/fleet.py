# SPDX-License-Identifier: Apache-2.0
"""Scrapes many nodes. A node's identity is the address that top connects to, never a label of its page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from hypervisor.scraper.address import url_of
from hypervisor.scraper.fetch import fetch, session
from hypervisor.scraper.parser import Page
from hypervisor.scraper.scraper import Scraper
from hypervisor.scraper.target_health import ScrapeTiming, TargetHealth
from hypervisor.top.assemble import Facts, cards_of, list_in, number_in, text_in
from hypervisor.top.model import CardView, Health, NodeView, ProcessView
from hypervisor.top.scraped import facts_of
from hypervisor.top.text import clean

FIRST_WAIT_S = 1.0
"""Time that the first reading waits for answers; later answers appear in the next reading."""
PACES = ((10, 2.0), (50, 3.0), (100, 4.0))
SLOWEST_S = 6.0
REASONS = {
    "refused": "cannot be reached",
    "timeout": "no answer in time",
    "broken": "the connection was lost",
    "redirect": "wants to send us elsewhere",
    "status": "answers with an error",
    "too_large": "its page is too large",
    "encoding": "its page cannot be unpacked",
    "tls": "TLS failed",
    "empty": "its page holds no sample",
}


def pace_for(hosts: int) -> float:
    """Return the seconds between two readings of `hosts` hosts."""
    return next((seconds for most, seconds in PACES if hosts <= most), SLOWEST_S)


@dataclass(slots=True)
class Kept:
    """State of one host between readings."""

    page: Page | None = None
    """Page that `node` was built from."""
    node: NodeView | None = None
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of samples left out, over all pages of the host, by reason."""


class Fleet:
    """Scrapes all hosts, each with its own period, and builds nodes from their pages."""

    def __init__(self, hosts: Sequence[str], *, interval_s: float | None = None) -> None:
        self._interval_s = interval_s or pace_for(len(hosts))
        self._hosts = tuple(hosts)
        self._urls = {host: url_of(host) for host in hosts}
        self._kept = {host: Kept() for host in hosts}
        self._client: aiohttp.ClientSession | None = None
        self._scraper: Scraper[str] | None = None

    @property
    def interval_s(self) -> float:
        return self._interval_s

    @interval_s.setter
    def interval_s(self, seconds: float) -> None:
        self._interval_s = seconds
        if self._scraper is not None:
            self._scraper.set_period(seconds)

    async def _get(self, host: str) -> bytes:
        if self._client is None:
            self._client = session()
        return await fetch(self._client, self._urls[host])

    def _start(self) -> Scraper[str]:
        return Scraper(self._get, pace=ScrapeTiming(period_s=self.interval_s))

    async def read(self) -> tuple[NodeView, ...]:
        """Return all nodes with the data known now."""
        if self._scraper is None:
            self._scraper = self._start()
            self._scraper.watch(self._hosts)
            await asyncio.sleep(FIRST_WAIT_S)
        # In a thread: the screen reacts to keys meanwhile.
        return await asyncio.to_thread(self._nodes, self._scraper)

    async def read_once(self) -> tuple[NodeView, ...]:
        """Scrape every host once and return the nodes."""
        self._scraper = self._start()
        await self._scraper.once(self._hosts)
        return self._nodes(self._scraper)

    def _nodes(self, scraper: Scraper[str]) -> tuple[NodeView, ...]:
        return tuple(self._node(host, scraper.hosts[host]) for host in self._hosts)

    def _node(self, host: str, patience: TargetHealth[Page]) -> NodeView:
        kept, page = self._kept[host], patience.page
        if page is not None and page is not kept.page:
            node, dropped = node_of(host, page, kept.node)
            kept.dropped.update(dropped)
            kept.page, kept.node = page, node
        base = kept.node if page is not None and kept.node is not None else NodeView(host)
        return replace(
            base,
            health=health_of(base, patience),
            at_s=patience.last_page_at_s or 0.0,
            problems=(*failures_of(patience), *base.problems, *losses(kept.dropped)),
            dropped=kept.dropped.total(),
        )

    async def close(self) -> None:
        if self._scraper is not None:
            await self._scraper.close()
        if self._client is not None:
            await self._client.close()


def health_of(node: NodeView, patience: TargetHealth[Page]) -> Health:
    if patience.state == "up":
        return "partial" if node.problems or any(card.is_bad for card in node.cards) else "up"
    return "stale" if patience.state == "late" else patience.state


def failures_of(patience: TargetHealth[Page]) -> tuple[str, ...]:
    if not patience.failures:
        return ()
    times = "" if patience.failures == 1 else f", {patience.failures} times in a row"
    return (f"{REASONS.get(patience.reason, patience.reason)}{times}",)


def losses(dropped: Counter[str]) -> tuple[str, ...]:
    """Return one line that counts the samples left out of a node's pages."""
    if not dropped.total():
        return ()
    worst = ", ".join(reason.replace("_", " ") for reason, _ in dropped.most_common(2))
    return (f"{dropped.total()} samples not taken over ({worst})",)


def node_of(host: str, page: Page, before: NodeView | None) -> tuple[NodeView, Counter[str]]:
    """Return the node of a page, and the number of samples left out, by reason."""
    known = [card.uuid for card in before.cards] if before is not None else ()
    facts = facts_of(page, known)
    cards = cards_of(facts.observed)
    problems = []
    if facts.values.get("up") == 0:
        problems.append("its daemon does not divide GPU time")
    if facts.values.get("nvml_up") == 0:
        problems.append("NVML does not answer there")
    if not cards:
        problems.append("its page tells of no GPU")
    node = NodeView(
        host=host,
        cards=cards,
        processes=processes_of(facts.processes, cards),
        problems=tuple(problems),
        version=clean(facts.version),
    )
    return node, page.dropped + page.repaired + facts.dropped


def processes_of(rows: list[dict[str, object]], cards: tuple[CardView, ...]) -> tuple[ProcessView, ...]:
    """Return the processes of a page; only pages with debug labels have them."""
    indexes = {uuid: card.index for card in cards for uuid, _ in card.on_parts()}
    found = []
    for row in list_in({"rows": rows}, "rows"):
        pid = text_in(row, "host_pid")
        if pid.isascii() and pid.isdecimal() and len(pid) <= 10:
            found.append(process_of(int(pid), row, indexes))
    return tuple(found)


def process_of(pid: int, row: Facts, indexes: dict[str, int | None]) -> ProcessView:
    uuid = text_in(row, "uuid")
    client = row.get("client")
    _, namespace, pod, _, tenant = client if isinstance(client, tuple) and len(client) == 5 else ("",) * 5
    return ProcessView(
        pid=pid,
        card=uuid,
        card_index=indexes.get(uuid),
        tenant=clean(f"{namespace}/{pod}" if namespace else pod or tenant),
        user=text_in(row, "user"),
        command=text_in(row, "command"),
        memory_bytes=number_in(row, "client_nvml_used_bytes"),
    )
