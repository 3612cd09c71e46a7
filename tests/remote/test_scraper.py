# SPDX-License-Identifier: Apache-2.0
"""Many exporters at once."""

from __future__ import annotations

import asyncio
import time

from hypervisor.scraper.errors import FetchError
from hypervisor.scraper.fetch import Budget, fetch, session
from hypervisor.scraper.scraper import Scraper
from hypervisor.scraper.target_health import ScrapeTiming
from tests.remote.exporters import endless, exporter, hang, head, page

PACE = ScrapeTiming(period_s=0.2, longest_s=1.0)


async def until(check, within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def test_one_round_asks_everybody_once() -> None:
    async def run() -> None:
        with exporter(page(b"m 1\n")) as good, exporter(page(b"<html>\n")) as other:
            async with session() as client:
                scraper = Scraper(lambda url: fetch(client, url))
                await scraper.once([good.url, other.url])
                await scraper.close()
            assert scraper.hosts[good.url].page.samples == {"m": {(): 1}}
            assert scraper.hosts[other.url].reason == "empty" and scraper.hosts[other.url].page is None
            assert good.connections == other.connections == 1

    asyncio.run(run())


def test_those_who_hang_delay_nobody() -> None:
    """Many more hang than there are places."""
    asked: dict[str, list[float]] = {}

    async def get(name: str) -> bytes:
        asked.setdefault(name, []).append(time.monotonic())
        if name.startswith("hung"):
            await asyncio.sleep(0.2)
            raise FetchError("timeout", "hangs")
        return b"m 1\n"

    async def run() -> None:
        scraper = Scraper(get, pace=PACE, most_at_once=8)
        names = [f"{'good' if n % 10 == 0 else 'hung'}-{n}" for n in range(100)]
        scraper.watch(names)
        good = [name for name in names if name.startswith("good")]
        # Each that hangs may take a place of the good ones once: 90 of a fifth of a second in 8 places.
        await until(lambda: all(len(asked.get(name, ())) > 3 for name in good), 30)
        begin = {name: len(asked[name]) for name in good}
        await asyncio.sleep(2.0)
        assert all(len(asked[name]) - begin[name] >= 4 for name in good), "five a second are due"
        await scraper.close()

    asyncio.run(run())


def test_an_exporter_comes_goes_and_comes_back() -> None:
    async def run() -> None:
        with exporter(page(b"m 1\n")) as host:
            async with session() as client:
                scraper = Scraper(lambda url: fetch(client, url, Budget(total_s=0.5)), pace=PACE)
                scraper.watch([host.url])
                patience = scraper.hosts[host.url]
                await until(lambda: patience.state == "up")
                host.behaviour = hang
                await until(lambda: patience.state == "late")
                assert patience.page is not None
                await until(lambda: patience.state == "down")
                assert patience.page is None and patience.reason == "timeout"
                host.behaviour = page(b"m 2\n")
                await until(lambda: patience.state == "up")
                assert patience.page.samples == {"m": {(): 2}}
                scraper.watch([])
                assert not scraper.hosts
                asked = host.connections
                await asyncio.sleep(0.6)
                assert host.connections == asked
                await scraper.close()

    asyncio.run(run())


def test_a_hostile_exporter_spoils_no_other() -> None:
    forged = b'gpulimit_gpu_info{gpu_uuid="GPU-1",host="good"} 666\n'

    async def run() -> None:
        true = page(b'gpulimit_gpu_info{gpu_uuid="GPU-1"} 1\n')
        flood = endless(b'm{a="b"} 1\n' * 5000, head())
        with exporter(true) as good, exporter(page(forged)) as liar, exporter(flood) as flooder:
            async with session() as client:
                scraper = Scraper(lambda url: fetch(client, url), pace=PACE)
                scraper.watch([good.url, liar.url, flooder.url])
                await until(lambda: scraper.hosts[flooder.url].state == "down")
                await until(lambda: scraper.hosts[liar.url].state == "up")
                await until(lambda: scraper.hosts[good.url].state == "up")
                assert scraper.hosts[flooder.url].reason == "too_large"
                samples = scraper.hosts[good.url].page.samples
                assert samples == {"gpulimit_gpu_info": {(("gpu_uuid", "GPU-1"),): 1}}
                await scraper.close()

    asyncio.run(run())
