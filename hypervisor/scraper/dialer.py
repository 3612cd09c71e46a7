# SPDX-License-Identifier: Apache-2.0
"""Connections to guests and other endpoints, for aiohttp."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

import aiohttp

from hypervisor.scraper.endpoint import Endpoint
from hypervisor.scraper.errors import FetchError
from hypervisor.scraper.netns import socket_in

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

MAX_GREETING_BYTES = 64


async def dial(endpoint: Endpoint, netns: str = "") -> socket.socket:
    """Return a connected socket, however long that takes. Raises OSError, FetchError.

    `netns`: the network namespace to connect from, if not this process's own.
    """
    loop = asyncio.get_running_loop()

    def fresh(family: int) -> socket.socket:
        return socket_in(netns, family) if netns else socket.socket(family, socket.SOCK_STREAM)

    if endpoint.kind == "tcp":
        found = await loop.getaddrinfo(endpoint.place, endpoint.port, type=socket.SOCK_STREAM)
        family, address = found[0][0], found[0][4]
        return await connected(fresh(family), address)
    if endpoint.kind == "vsock":
        return await connected(fresh(socket.AF_VSOCK), (endpoint.cid, endpoint.port))
    plug = await connected(fresh(socket.AF_UNIX), endpoint.place)
    if endpoint.kind == "hvsock":
        try:
            await ask_for_port(plug, endpoint.port)
        except BaseException:
            plug.close()
            raise
    return plug


async def connected(plug: socket.socket, address: object) -> socket.socket:
    """Return the socket, connected; closed if that fails."""
    plug.setblocking(False)
    try:
        if plug.family == socket.AF_UNIX:
            # At once or not at all: where the queue is full there is nothing to wait for, and asyncio would
            # take the socket for a connected one.
            plug.connect(address)  # type: ignore[arg-type]
        else:
            await asyncio.get_running_loop().sock_connect(plug, address)  # type: ignore[arg-type]
    except BaseException:
        plug.close()
        raise
    return plug


async def ask_for_port(plug: socket.socket, port: int) -> None:
    """Have the machine's monitor connect the stream to a port of the guest."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(plug, b"CONNECT %d\n" % port)
    said = b""
    while not said.endswith(b"\n"):  # byte by byte: what is behind the line is the guest's
        byte = await loop.sock_recv(plug, 1)
        said += byte
        if not byte or len(said) > MAX_GREETING_BYTES:
            break
    if not (said.startswith(b"OK ") and said.endswith(b"\n")):
        raise FetchError("refused", f"no process listens on port {port} of the guest")


class Connector(aiohttp.BaseConnector):
    """Connects every request to one endpoint, whatever its URL says; with TLS if it has a context."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        netns: str = "",
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        super().__init__(limit=0, force_close=True)
        self._endpoint, self._netns = endpoint, netns
        self._tls, self._server_name = tls, server_name

    async def _create_connection(
        self,
        req: ClientRequest,  # noqa: ARG002
        traces: list[Trace],  # noqa: ARG002
        timeout: aiohttp.ClientTimeout,
    ) -> ResponseHandler:
        try:
            async with asyncio.timeout(timeout.sock_connect):
                plug = await dial(self._endpoint, self._netns)
                _, protocol = await self._loop.create_connection(
                    self._factory,
                    sock=plug,
                    ssl=self._tls,
                    server_hostname=self._server_name if self._tls else None,
                )
        except ssl.SSLError as error:
            raise FetchError("tls", f"TLS with {self._endpoint}: {error}") from error
        except TimeoutError as error:
            raise FetchError("timeout", f"{self._endpoint} takes no connection") from error
        except OSError as error:
            raise FetchError("refused", f"{self._endpoint}: {error.strerror or error}") from error
        return protocol
