# SPDX-License-Identifier: Apache-2.0
"""/metrics over HTTP: a few at once, and nobody for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from hypervisor.exporter import scrape

LARGE = b"x" * (32 << 20)
MOST = 3


@contextlib.asynccontextmanager
async def serving(body: bytes, longest_s: float) -> AsyncIterator[int]:
    app = web.Application()
    page = scrape.handler(lambda *_: (body, {}), most=MOST, longest_s=longest_s)
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def ask(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return reader, writer


async def status_of(port: int) -> int:
    reader, writer = await ask(port)
    line = await asyncio.wait_for(reader.readline(), 5)
    writer.transport.abort()
    return int(line.split()[1])


def test_scrapers_that_do_not_read_hold_a_few_places_for_a_while() -> None:
    async def scenario() -> None:
        async with serving(LARGE, longest_s=1.0) as port:
            idle = [await ask(port) for _ in range(MOST)]
            await asyncio.sleep(0.3)
            assert await status_of(port) == 503
            for _ in range(50):
                await asyncio.sleep(0.1)
                if await status_of(port) == 200:
                    break
            else:
                raise AssertionError("the places were never given back")
            for _, writer in idle:
                writer.transport.abort()

    asyncio.run(scenario())


def test_one_after_the_other_as_many_as_one_likes() -> None:
    async def scenario() -> None:
        async with serving(b"up 1\n", longest_s=1.0) as port:
            assert [await status_of(port) for _ in range(5 * MOST)] == [200] * 5 * MOST

    asyncio.run(scenario())
