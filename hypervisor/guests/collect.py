# SPDX-License-Identifier: Apache-2.0
"""`gpulimit guest-collector`: asks the virtual machines of this node and serves what they say on :9403."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import platform
import signal
import sys
from collections.abc import Sequence

from aiohttp import web

from hypervisor import log
from hypervisor.edge import health, notify, scrape
from hypervisor.errors import ConfigError
from hypervisor.exporter.exporter import Exporter
from hypervisor.exporter.snapshot import Snapshot
from hypervisor.guests.collector import BUDGET, LONGEST_PAUSE_S, Collector, Source
from hypervisor.guests.guest_file import GuestFile
from hypervisor.guests.kubevirt import KubeVirt
from hypervisor.guests.listen import listen
from hypervisor.guests.one_of_us import Lock
from hypervisor.guests.options import CollectorSettings, load
from hypervisor.guests.program import run_program
from hypervisor.k8s.access import api_server
from hypervisor.k8s.client import Client
from hypervisor.remote.endpoint import Endpoint
from hypervisor.remote.fetch import Budget
from hypervisor.remote.patience import Pace
from limiter import about

logger = logging.getLogger(__name__)
PREFIX = "GPULIMIT_COLLECTOR_"
PUBLISH_S = 0.5
"""Pages are made anew at most so often, however many guests answer."""


class Program:
    """The collector, its page, and the wait for its turn."""

    def __init__(self, settings: CollectorSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._lock = Lock(settings.lock)
        self._news = asyncio.Event()
        self.stopping = asyncio.Event()
        self.exporter = Exporter()
        self.file = GuestFile(settings.guests) if settings.guests else None
        period_s, total_s = settings.period / 1e9, settings.timeout / 1e9
        self.collector = Collector(
            self._sources(),
            pace=Pace(period_s, max(period_s, LONGEST_PAUSE_S)),
            budget=Budget(min(BUDGET.connect_s, total_s), total_s, BUDGET.received_bytes, BUDGET.page_bytes),
            changed=self._news.set,
        )

    def _sources(self) -> list[Source]:
        settings = self._settings
        sources: list[Source] = [self.file] if self.file is not None else []
        if settings.kubevirt:
            if not settings.node:
                raise ConfigError("node", "", "is needed with kubevirt")
            access = api_server(settings.kube_api, settings.kube_token_file, settings.kube_ca_file)
            self._client = Client(access)
            sources.append(
                KubeVirt(
                    self._client,
                    node=settings.node,
                    port=settings.port,
                    token_file=settings.token_file,
                    ca_file=settings.ca_file,
                    server_name=settings.server_name,
                )
            )
        if not sources:
            raise ConfigError("guests", "", "is not set, and kubevirt is off: there is nobody to ask")
        return sources

    def publish(self) -> None:
        """Make pages of what is known now."""
        is_active = self._lock.is_held
        self.exporter.publish(
            Snapshot(
                guests=self.collector.views() if is_active else (),
                counts=self.collector.counts() if is_active else {},
                values={"guest_collector_active": int(is_active)},
                build={"version": about.version(), "python_version": platform.python_version()},
            )
        )

    def reasons_not_ready(self) -> list[str]:
        if not self._lock.is_held:
            return []  # waiting is what a second one is for, and a roll-out must not wait for it
        sources = self.collector.counts()["guest_source_up"]
        return [f"{name}: the list of guests is not fresh" for name, is_up in sources.items() if not is_up]

    async def _collect(self) -> None:
        if not self._lock.take():
            logger.warning("another collector asks on this node; waiting for it to end")
            await self._lock.wait()
        logger.info("asking guests")
        await self.collector.run()

    async def _publish(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self.publish()
            await asyncio.sleep(PUBLISH_S)

    async def run(self) -> None:
        """Serve until a signal comes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.file.reread if self.file else lambda: None)
        self.publish()
        pages = health.application(reasons=self.reasons_not_ready, metrics=scrape.handler(self.exporter.page))
        runner = web.AppRunner(pages, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            host, _, port = self._settings.metrics_addr.rpartition(":")
            server = await listen(runner, Endpoint("tcp", host.strip("[]"), int(port)))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._collect(), name="collector"),
                    group.create_task(self._publish(), name="publisher"),
                ]
                notify.notify("READY=1")
                await self.stopping.wait()
                for task in tasks:
                    task.cancel()
            server.close()
        finally:
            await runner.cleanup()
            if self._client is not None:
                await self._client.close()
            self._lock.close()


async def serve(settings: CollectorSettings) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await Program(settings).run()


def main(arguments: Sequence[str]) -> int:
    """`gpulimit guest-collector`."""
    parser = argparse.ArgumentParser(
        prog="gpulimit guest-collector",
        description="Ask the virtual machines of this node for the metrics of their GPUs, and serve them.",
        allow_abbrev=False,
    )

    def start() -> None:
        settings, _ = load(CollectorSettings, parser, PREFIX, arguments)
        if not settings.metrics_addr:
            raise ConfigError("metrics_addr", "", "is empty, so that nobody could read what is collected")
        log.set_up(form=settings.log_format, level=settings.log_level)
        asyncio.run(serve(settings))

    return run_program("guest-collector", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
