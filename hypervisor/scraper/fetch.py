# SPDX-License-Identifier: Apache-2.0
"""Fetches one page over HTTP from an untrusted server: bounded in time and bytes, without redirects.

Any number of fetches may run on one event loop. Each has its own connection, which ends with it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from hypervisor.scraper.decompression import Body
from hypervisor.scraper.errors import FetchError
from hypervisor.scraper.limits import LIMITS, MIB

ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4"
MAX_HEADERS_BYTES = 8190


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of one fetch."""

    connect_s: float = 2.0
    total_s: float = 5.0
    """Time from the name lookup to the last byte."""
    received_bytes: int = 10 * MIB
    """Bytes on the wire."""
    page_bytes: int = LIMITS.page_bytes
    """Decompressed bytes."""


BUDGET = Budget()


def session(connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientSession:
    """Return a session for `fetch`, without cookies, proxy and kept connections. The caller closes it.

    Without a special connector it serves http:// and https://. The caller decides how many fetches run at
    once.
    """
    return aiohttp.ClientSession(
        connector=connector or aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # decompression.Body does it, within bounds
        trust_env=False,
        max_line_size=MAX_HEADERS_BYTES,
        max_field_size=MAX_HEADERS_BYTES,
        headers={"Accept": ACCEPT, "Accept-Encoding": "gzip", "User-Agent": "gpulimit"},
    )


async def fetch(
    client: aiohttp.ClientSession,
    url: str | URL,
    budget: Budget = BUDGET,
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | bool = True,
) -> bytes:
    """Return a page. Raises FetchError."""
    times = aiohttp.ClientTimeout(total=None, connect=budget.connect_s, sock_connect=budget.connect_s)
    try:
        async with (
            asyncio.timeout(budget.total_s),
            client.get(url, timeout=times, headers=headers, ssl=tls, allow_redirects=False) as response,
        ):
            return await body_of(response, budget)
    except TimeoutError as error:  # aiohttp's timeouts have this class too
        raise FetchError("timeout", f"no whole answer within {budget.total_s:g} s") from error
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        raise FetchError("tls", f"TLS: {error}") from error
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        raise FetchError("refused", str(error)) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError("broken", f"{type(error).__name__}: {error}"[:200]) from error


async def body_of(response: aiohttp.ClientResponse, budget: Budget) -> bytes:
    """Return the body of a successful answer. Raises FetchError for any other answer."""
    if 300 <= response.status < 400:
        raise FetchError("redirect", f"answers {response.status}, wants to send us elsewhere")
    if response.status != 200:
        raise FetchError("status", f"answers {response.status}")
    if (response.content_length or 0) > budget.received_bytes:
        raise FetchError("too_large", f"announces {response.content_length} bytes")
    body = Body(
        response.headers.get("Content-Encoding", "").strip().lower(),
        most_received=budget.received_bytes,
        most=budget.page_bytes,
    )
    async for chunk in response.content.iter_any():
        body.take(chunk)
    return body.whole()
