# SPDX-License-Identifier: Apache-2.0
"""`gpulimit guest-collector`: scrapes the virtual machines of this node and serves their metrics on :9403."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import signal
import sys
from collections.abc import Sequence

from aiohttp import web

from hypervisor import log
from hypervisor.entrypoint import run_program
from hypervisor.errors import ConfigError
from hypervisor.exporter import health, scrape
from hypervisor.exporter.exporter import Exporter
from hypervisor.guests.listener import listen
from hypervisor.guests.options import CollectorSettings, load
from hypervisor.guests.service import GuestService, KubeVirtConfig
from hypervisor.host import sd_notify as notify
from hypervisor.metrics.snapshot import Snapshot
from hypervisor.scraper.endpoint import Endpoint
from limiter import about

PREFIX = "GPULIMIT_COLLECTOR_"
PUBLISH_S = 0.5
"""Shortest time between two renderings of the page, however many guests answer."""


class Program:
    """The collector and its page."""

    def __init__(self, settings: CollectorSettings) -> None:
        self._settings = settings
        self._news = asyncio.Event()
        self.stopping = asyncio.Event()
        self.exporter = Exporter()
        self.guests = GuestService(
            path=settings.guests,
            cluster=cluster_of(settings) if settings.kubevirt else None,
            lock=settings.lock,
            period_s=settings.period / 1e9,
            timeout_s=settings.timeout / 1e9,
            changed=self._news.set,
        )

    def publish(self) -> None:
        """Render the page from the current values."""
        build = {"version": about.version(), "python_version": platform.python_version()}
        self.exporter.publish(self.guests.added_to(Snapshot(build=build)))

    async def _publish(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self.publish()
            await asyncio.sleep(PUBLISH_S)

    async def run(self) -> None:
        """Serve until a signal arrives."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.guests.reread)
        self.publish()
        pages = health.application(
            reasons=self.guests.reasons_not_ready, metrics=scrape.handler(self.exporter.page)
        )
        runner = web.AppRunner(pages, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            host, _, port = self._settings.metrics_addr.rpartition(":")
            server = await listen(runner, Endpoint("tcp", host.strip("[]"), int(port)))
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.guests.run(), name="collector"),
                    group.create_task(self._publish(), name="publisher"),
                ]
                notify.notify("READY=1")
                await self.stopping.wait()
                for task in tasks:
                    task.cancel()
            server.close()
        finally:
            await runner.cleanup()


def cluster_of(settings: CollectorSettings) -> KubeVirtConfig:
    """Return the KubeVirt settings. Raises ConfigError if the node's name is missing."""
    if not settings.node:
        raise ConfigError("node", "", "is needed with kubevirt")
    return KubeVirtConfig(
        node=settings.node,
        api=settings.kube_api,
        token_file=settings.kube_token_file,
        ca_file=settings.kube_ca_file,
        port=settings.port,
        guest_token_file=settings.token_file,
        guest_ca_file=settings.ca_file,
        guest_server_name=settings.server_name,
    )


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
            raise ConfigError("metrics_addr", "", "is empty: the collected metrics could not be read")
        if not settings.guests and not settings.kubevirt:
            raise ConfigError("guests", "", "is not set, and kubevirt is off: there is no guest to scrape")
        log.set_up(form=settings.log_format, level=settings.log_level)
        asyncio.run(serve(settings))

    return run_program("guest-collector", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
