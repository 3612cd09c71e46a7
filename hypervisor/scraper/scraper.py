# SPDX-License-Identifier: Apache-2.0
"""Asks many exporters, again and again, each at its own pace: one that hangs or lies delays no other.

Those that have failed lately queue for a few places of their own, so that however many hang, the others find
room. Pages are read in threads, because a hostile one can take a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar

from hypervisor.scraper.errors import FetchError
from hypervisor.scraper.limits import LIMITS, Limits
from hypervisor.scraper.parser import EMPTY, Page, parse
from hypervisor.scraper.target_health import ScrapeTiming, TargetHealth, staggered

logger = logging.getLogger(__name__)
K = TypeVar("K")
MAX_FETCHES_AT_ONCE = 64
MAX_SUSPECTS_AT_ONCE = 16
STAGGER_S = 0.5
READERS = 4
Fetch = Callable[[K], Awaitable[bytes]]
"""Gets the page of an exporter; raises FetchError."""


class Scraper(Generic[K]):
    """Exporters by keys of the caller's choice, which say nothing that the exporter itself has said."""

    def __init__(
        self,
        fetch: Fetch[K],
        *,
        pace: ScrapeTiming | None = None,
        limits: Limits = LIMITS,
        most_at_once: int = MAX_FETCHES_AT_ONCE,
        changed: Callable[[K], None] = lambda _: None,
    ) -> None:
        """`changed` is told of each try that has ended."""
        self._fetch = fetch
        self._pace = pace or ScrapeTiming()
        self._limits = limits
        self._changed = changed
        self._places = asyncio.Semaphore(most_at_once)
        self._suspects = asyncio.Semaphore(MAX_SUSPECTS_AT_ONCE)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="pages")
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self.hosts: dict[K, TargetHealth[Page]] = {}

    def watch(self, keys: Iterable[K]) -> None:
        """Ask these from now on, and no others; those that were asked before go on undisturbed."""
        wanted = dict.fromkeys(keys)
        for key in [key for key in self.hosts if key not in wanted]:
            del self.hosts[key]
            self._tasks.pop(key).cancel()
        fresh = [key for key in wanted if key not in self.hosts]
        now_s = time.monotonic()
        for index, key in enumerate(fresh):
            first_at_s = now_s + staggered(index, len(fresh), STAGGER_S)
            self.hosts[key] = TargetHealth(self._pace, first_at_s=first_at_s)
            self._tasks[key] = asyncio.create_task(self._go_on(key), name=f"scrape {key}")

    def set_period(self, period_s: float) -> None:
        """Ask at another pace from the next try on."""
        self._pace = replace(self._pace, period_s=period_s)
        for host in self.hosts.values():
            host.pace = self._pace

    async def _go_on(self, key: K) -> None:
        host = self.hosts[key]
        while True:
            await asyncio.sleep(max(0.0, host.next_at_s - time.monotonic()))
            await self._try(key, host)

    async def once(self, keys: Iterable[K]) -> None:
        """Ask each of these once, and wait for all."""
        for key in keys:
            self.hosts[key] = TargetHealth(self._pace)
        async with asyncio.TaskGroup() as group:
            for key, host in self.hosts.items():
                group.create_task(self._try(key, host))

    async def _try(self, key: K, host: TargetHealth[Page]) -> None:
        async with self._suspects if host.failures else self._places:
            host.ask(time.monotonic())
            try:
                data = await self._fetch(key)
                page = await self._read(data, host.last_page or EMPTY)
            except FetchError as error:
                host.failed(error.reason, time.monotonic())
            except Exception:
                # A mistake of ours that a page brings to light must cost that page alone.
                logger.exception("%s: its page cannot be read", key)
                host.failed("broken", time.monotonic())
            else:
                host.took(page, time.monotonic())
        self._changed(key)

    async def _read(self, data: bytes, before: Page) -> Page:
        """Return what a page says. Raises FetchError if that is nothing."""
        loop = asyncio.get_running_loop()
        page = await loop.run_in_executor(self._readers, lambda: parse(data, self._limits, before=before))
        if not page.samples:
            raise FetchError("empty", "the page has no sample")
        return page

    async def close(self) -> None:
        """Stop asking."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._readers.shutdown(wait=False, cancel_futures=True)
