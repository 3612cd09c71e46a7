# SPDX-License-Identifier: Apache-2.0
"""Serves HTTP on a vsock port, a Unix socket or TCP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from hypervisor.errors import ConfigError
from hypervisor.scraper.endpoint import HOST_CID, LOCAL_CID, Endpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BACKLOG = 256
MAX_CONNECTIONS = 64
HANDSHAKE_S = 5.0
SOCKET_MODE = 0o660


async def listen(
    runner: web.AppRunner, endpoint: Endpoint, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Start to serve. Raises ConfigError, which names the endpoint.

    aiohttp's SockSite cannot be used: it cannot name a vsock address.
    """
    server = runner.server
    assert server is not None

    def protocol() -> asyncio.BaseProtocol:
        # Clients that hold idle connections open must not keep other clients out: the oldest is closed.
        connections = server.connections
        if len(connections) >= MAX_CONNECTIONS and connections[0].transport is not None:
            connections[0].transport.abort()
        return server()

    loop = asyncio.get_running_loop()
    return await loop.create_server(
        protocol,
        sock=listener(endpoint),
        ssl=tls,
        backlog=BACKLOG,
        ssl_handshake_timeout=HANDSHAKE_S if tls else None,
    )


def listener(endpoint: Endpoint) -> socket.socket:
    """Return a bound socket. Raises ConfigError."""
    family, address = place_of(endpoint)
    try:
        plug = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError("listen", "", f"{endpoint}: {error.strerror}") from error
    try:
        if endpoint.kind == "unix":
            remove_left_over(endpoint.place)
        if endpoint.kind == "tcp":
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        plug.bind(address)
        if endpoint.kind == "unix":
            Path(endpoint.place).chmod(SOCKET_MODE)
        plug.listen(BACKLOG)
    except OSError as error:
        plug.close()
        raise ConfigError("listen", "", f"{endpoint}: {error.strerror or error}") from error
    plug.setblocking(False)
    return plug


def place_of(endpoint: Endpoint) -> tuple[int, Any]:
    """Return family and address to bind. Raises ConfigError."""
    if endpoint.kind == "unix":
        return socket.AF_UNIX, endpoint.place
    if endpoint.kind == "vsock":
        if not hasattr(socket, "AF_VSOCK"):
            raise ConfigError("listen", "", f"{endpoint}: this Python has no vsock")
        return socket.AF_VSOCK, (endpoint.cid, endpoint.port)
    try:
        found = socket.getaddrinfo(
            endpoint.place or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError("listen", "", f"{endpoint}: {error.strerror}") from error
    return found[0][0], found[0][4]


def remove_left_over(path: str) -> None:
    """Remove a socket on which no process listens any more."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()


def only_host(handler_app: web.Application) -> None:
    """Make an application refuse vsock peers other than the host and this machine."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        plug = request.transport.get_extra_info("socket") if request.transport is not None else None
        is_vsock = plug is not None and plug.family == getattr(socket, "AF_VSOCK", None)
        if is_vsock and request.transport is not None:
            cid = request.transport.get_extra_info("peername")[0]
            if cid not in (HOST_CID, LOCAL_CID):
                raise web.HTTPForbidden(text="only the host may ask\n")
        return await handler(request)

    handler_app.middlewares.append(check)
