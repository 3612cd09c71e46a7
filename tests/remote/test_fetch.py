# SPDX-License-Identifier: Apache-2.0
"""Fetching from exporters that misbehave: bounded in time, bytes and memory, and never led elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import socket
import time
from typing import Any

import pytest

from hypervisor.scraper.address import url_of
from hypervisor.scraper.errors import AddressError, FetchError
from hypervisor.scraper.fetch import BUDGET, Budget, fetch, session
from hypervisor.scraper.parser import parse
from tests.remote.exporters import (
    MIB,
    Behaviour,
    bomb,
    drip,
    endless,
    exporter,
    hang,
    head,
    leave,
    page,
    raw,
)

GOOD = b'up 1\nm{a="b"} 2\n'
SHORT = Budget(connect_s=1.0, total_s=1.0)
ROOMY = Budget(connect_s=10.0, total_s=30.0)
"""For those that are to fail on bytes, however slow the machine."""


def get(behaviour: Behaviour, budget: Budget = BUDGET, **options: Any) -> tuple[bytes, bytes]:
    """Return the page, and the request that was made for it."""

    async def run(url: str) -> bytes:
        async with session() as client:
            return await fetch(client, url, budget, **options)

    with exporter(behaviour) as made:
        return asyncio.run(run(made.url)), made.request


def refused(behaviour: Behaviour, budget: Budget = ROOMY) -> str:
    with pytest.raises(FetchError) as caught:
        get(behaviour, budget)
    return caught.value.reason


@pytest.mark.parametrize(
    "behaviour",
    [
        page(GOOD),
        page(gzip.compress(GOOD), "Content-Encoding: gzip"),
        raw(head() + GOOD),
        raw(head("Transfer-Encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)),
        page(GOOD, "Content-Encoding: identity"),
        drip(head(f"Content-Length: {len(GOOD)}") + GOOD, 0.001),
    ],
    ids=["plain", "gzip", "until closed", "chunked", "identity", "slow"],
)
def test_a_page_is_fetched(behaviour) -> None:
    assert get(behaviour)[0] == GOOD


def test_the_request_asks_for_text_and_tells_nothing() -> None:
    request = get(page(GOOD), headers={"Authorization": "Bearer secret"})[1]
    assert request.startswith(b"GET /metrics HTTP/1.1\r\n") and b"Authorization: Bearer secret" in request
    assert b"text/plain;version=0.0.4" in request and b"Cookie" not in request


LINES = b"m 1\n" * 16384


@pytest.mark.parametrize(
    ("reason", "behaviour"),
    [
        ("too_large", endless(LINES, head("Content-Length: 10737418240"))),
        ("too_large", endless(LINES, head())),
        ("too_large", endless(LINES, head("Transfer-Encoding: chunked"), is_chunked=True)),
        ("too_large", page(bomb(200 * MIB), "Content-Encoding: gzip")),
        ("broken", endless(b"x" * 65536, b"HTTP/1.1 200 OK\r\nX-Long: ")),
        ("redirect", page(b"", "Location: http://169.254.169.254/latest", status="302 Found")),
        ("redirect", page(b"", "Location: /metrics", status="307 Temporary Redirect")),
        ("status", page(b"", status="503 Service Unavailable")),
        ("status", page(b"", status="404 Not Found")),
        ("encoding", page(b"xx", "Content-Encoding: br")),
        ("encoding", page(b"no gzip", "Content-Encoding: gzip")),
        ("encoding", page(gzip.compress(GOOD)[:-4], "Content-Encoding: gzip")),
        ("encoding", page(gzip.compress(GOOD) * 2, "Content-Encoding: gzip")),
        ("broken", leave),
        ("broken", raw(b"SSH-2.0-OpenSSH_9.6\r\n")),
        ("broken", raw(head("Content-Length: 99999") + GOOD)),
    ],
)
def test_an_exporter_that_misbehaves_is_refused(reason, behaviour) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(behaviour) == reason
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 * 1024


@pytest.mark.parametrize(
    "behaviour",
    [
        hang,
        drip(head("Content-Length: 1000") + GOOD * 100, 0.05),
        drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000, 0.05),
        endless(b"HTTP/1.1 100 Continue\r\n\r\n"),
        endless(b"X-More: and more\r\n", b"HTTP/1.1 200 OK\r\n"),
    ],
    ids=["hangs", "slow body", "slow headers", "endless interim answers", "endless headers"],
)
def test_time_is_limited_in_total(behaviour) -> None:
    begin = time.monotonic()
    assert refused(behaviour, SHORT) in ("timeout", "broken")
    assert time.monotonic() - begin < 5


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def run() -> None:
        async with session() as client:
            await fetch(client, f"http://127.0.0.1:{port}/metrics", SHORT)

    with pytest.raises(FetchError) as caught:
        asyncio.run(run())
    assert caught.value.reason == "refused"


def test_a_full_backlog_is_waited_for_no_longer_than_connecting_may_take() -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())

        async def run() -> None:
            async with session() as client:
                url = f"http://127.0.0.1:{full.getsockname()[1]}/metrics"
                await fetch(client, url, Budget(connect_s=0.3, total_s=20))

        begin = time.monotonic()
        with pytest.raises(FetchError) as caught:
            asyncio.run(run())
    assert caught.value.reason == "timeout" and time.monotonic() - begin < 10


def test_a_million_series_are_read_as_far_as_the_limits_go() -> None:
    body = b"".join(b'm{a="%d"} 1\n' % n for n in range(400_000))
    assert len(body) < BUDGET.page_bytes
    found = parse(get(page(body), ROOMY)[0])
    assert found.count == 50_000 and found.dropped["too_many_series"] == 50_000
    assert found.dropped["too_many_lines"] == 1
    million = b"".join(b'm{a="%d"} 1\n' % n for n in range(1_000_000))
    assert refused(page(million)) == "too_large"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("node1", "http://node1:9402/metrics"),
        ("node1:8080", "http://node1:8080/metrics"),
        (" 10.0.0.1:9100 ", "http://10.0.0.1:9100/metrics"),
        ("[::1]:9100", "http://[::1]:9100/metrics"),
        ("http://node1", "http://node1:9402/metrics"),
        ("https://node1:8443/metrics", "https://node1:8443/metrics"),
    ],
)
def test_addresses(address, url) -> None:
    assert str(url_of(address)) == str(url)


@pytest.mark.parametrize(
    "address",
    ["", "ftp://node1", "file:///etc/passwd", "http://user:secret@node1", "node1:99999", "node1:x", "node1:0",
     "node1/other", "node1?x=1", "node1#x", "http://", "a b", "node1\r\nX: 1"],
)  # fmt: skip
def test_addresses_that_are_refused(address) -> None:
    with pytest.raises(AddressError) as caught:
        url_of(address)
    assert repr(address) in str(caught.value)
