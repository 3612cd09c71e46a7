# SPDX-License-Identifier: Apache-2.0
"""Serves /metrics over HTTP, with a bound on simultaneous scrapes and on their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

MAX_SCRAPES_AT_ONCE = 16
MAX_SCRAPE_S = 10.0
Page = Callable[[str, str], tuple[bytes, dict[str, str]]]
"""Body and headers by Accept and Accept-Encoding."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def handler(page: Page, *, most: int = MAX_SCRAPES_AT_ONCE, longest_s: float = MAX_SCRAPE_S) -> Handler:
    """Return the handler of /metrics; beyond `most` scrapes at a time, it answers 503."""
    under_way = 0

    async def scrape(request: web.Request) -> web.StreamResponse:
        nonlocal under_way
        if under_way >= most:
            return web.Response(status=503, text="too many scrapes at once\n", headers={"Retry-After": "1"})
        under_way += 1
        try:
            body, headers = page(
                request.headers.get("Accept", ""), request.headers.get("Accept-Encoding", "")
            )
            response = web.Response(body=body, headers=headers)
            async with asyncio.timeout(longest_s):  # a scraper that stops reading loses its place
                await response.prepare(request)
                await response.write_eof()
            return response
        except (TimeoutError, ConnectionError):  # the scraper has stopped reading, or has hung up
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=499)
        finally:
            under_way -= 1

    return scrape
