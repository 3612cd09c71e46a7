# SPDX-License-Identifier: Apache-2.0
"""A small client of the Kubernetes API: requests that return JSON, paged lists, streams of lines.

All answers are bounded. Redirects are not followed: they would send the token elsewhere. Proxies of the
environment are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from hypervisor.errors import KubeError
from hypervisor.k8s.access import Access, Trust

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
GONE, NOT_DONE = 410, 300
PAGE = 500
MAX_PAGES = 200
MAX_BODY_BYTES = 64 << 20
MAX_LINE_BYTES = 4 << 20
"""etcd accepts objects of at most 1.5 MiB; as JSON they may be somewhat longer."""
WHOLE_ANSWER = 6
"""Longest time of an answer whose data keeps arriving, as a multiple of the timeout."""
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 15, 5, 3


@dataclass(frozen=True, slots=True)
class Listing:
    """A collection at one moment."""

    items: tuple[Object, ...]
    version: str
    """Version from which a watch continues."""


class Client:
    """One server. Only one event loop may use it; the caller closes it."""

    def __init__(self, access: Access, *, timeout_s: float = 10.0) -> None:
        self._access = access
        self._trust = Trust(access)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[asyncio.Transport] = set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Return the object in the answer to a request. Raises KubeError.

        `path` begins with "/api/v1" or "/apis/GROUP/VERSION".
        """
        async with (
            self._open(
                method, path, query, read_s=self._timeout_s, body=body, content_type=content_type
            ) as response,
            asyncio.timeout(WHOLE_ANSWER * self._timeout_s),
        ):
            return decoded(await read_body(response))

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return an object. Raises KubeError."""
        return await self.request("GET", path, query=query)

    async def patch(self, path: str, body: Object) -> Object:
        """Merge fields into an object, and return the object. Raises KubeError."""
        return await self.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def create(self, path: str, body: Object) -> Object:
        """Add an object to a collection, and return it. Raises KubeError."""
        return await self.request("POST", path, body=body)

    async def list(self, path: str, query: Mapping[str, str] | None = None) -> Listing:
        """Return a collection, read page by page; restart once if a page has expired. Raises KubeError."""
        try:
            return await self._pages(path, dict(query or {}))
        except KubeError as error:
            if error.status != GONE:
                raise
        return await self._pages(path, dict(query or {}))

    async def _pages(self, path: str, query: dict[str, str]) -> Listing:
        items: list[Object] = []
        query.setdefault("limit", str(PAGE))
        for _ in range(MAX_PAGES):
            page = await self.get(path, query)
            meta, found = page.get("metadata"), page.get("items")
            if not isinstance(meta, dict) or not isinstance(found, list | None):
                raise KubeError(0, "the answer is not a list")
            items += [item for item in found or [] if isinstance(item, dict)]
            query["continue"] = meta.get("continue") or ""
            query.pop("resourceVersion", None)
            query.pop("resourceVersionMatch", None)
            if not query["continue"]:
                return Listing(tuple(items), str(meta.get("resourceVersion", "")))
        raise KubeError(0, f"{path}: the list has no end")

    async def lines(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncIterator[bytes]:
        """Yield the lines of a stream until the server ends it. The first line is empty: the stream is open.

        Raises KubeError, also if nothing arrives for `silence_s`.
        """
        async with self._open("GET", path, query, read_s=silence_s) as response, self._cuttable(response):
            yield b""
            rest = b""
            async for chunk in response.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line
                if len(rest) > MAX_LINE_BYTES:
                    raise KubeError(0, f"a line of more than {MAX_LINE_BYTES} bytes")
            if rest.strip():
                raise KubeError(0, "the stream ends within a line")

    def cut(self) -> None:
        """Break all streams as a failing network would; their readers start again."""
        for transport in self._streams:
            transport.abort()

    @contextlib.asynccontextmanager
    async def _cuttable(self, response: aiohttp.ClientResponse) -> AsyncIterator[None]:
        transport = response.connection.transport if response.connection is not None else None
        if not isinstance(transport, asyncio.Transport):
            yield  # a short answer, which has ended already
            return
        keep_alive(transport)
        self._streams.add(transport)
        try:
            yield
        finally:
            self._streams.discard(transport)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        *,
        read_s: float,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response of which only the headers were read. Every error meanwhile becomes a KubeError."""
        try:
            response = await self._send(method, path, query or {}, read_s, body, content_type)
            try:
                if response.status >= NOT_DONE:
                    raise refusal(response.status, await read_body(response))
                yield response
            finally:
                # Closed, not released: the next request on the connection must not read the rest of a stream.
                response.close()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise KubeError(0, str(error) or type(error).__name__) from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        read_s: float,
        body: Object | None,
        content_type: str,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        headers = {"Accept": "application/json", **self._access.headers()}
        if body is not None:
            headers["Content-Type"] = content_type
        return await self._session.request(
            method,
            self._access.url + path,
            params={key: value for key, value in query.items() if value},
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            ssl=self._trust.context() or True,
            server_hostname=self._access.server_name or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=read_s),
        )


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return a body of bounded length."""
    parts, length = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        length += len(chunk)
        if length > MAX_BODY_BYTES:
            raise KubeError(0, f"an answer of more than {MAX_BODY_BYTES} bytes")
    return b"".join(parts)


def decoded(body: bytes) -> Object:
    """Return the object in an answer. Raises KubeError."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise KubeError(0, f"the answer is not JSON: {body[:60]!r}") from error
    if not isinstance(found, dict):
        raise KubeError(0, "the answer is not an object")
    return found


def refusal(status: int, body: bytes) -> KubeError:
    """Return the error that a server answers with: a Status object, or plain text."""
    try:
        said = decoded(body)
        return KubeError(status, str(said.get("message") or said.get("reason") or ""))
    except KubeError:
        return KubeError(status, body[:200].decode("utf-8", "replace").strip())


def keep_alive(transport: asyncio.Transport) -> None:
    """Have the kernel find out within half a minute that the other machine is gone."""
    plug = transport.get_extra_info("socket")
    if plug is None:
        return
    with contextlib.suppress(OSError):
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
