# SPDX-License-Identifier: Apache-2.0
"""Opens the daemon's sockets and serves on them: the API on its Unix socket and over TCP, and the metrics
page.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from hypervisor.api import callers
from hypervisor.api.accounts import Accounts, CallerLimits
from hypervisor.api.fair_queue import FairQueue
from hypervisor.api.guard import SERVER_OPTIONS, guarded
from hypervisor.api.listener import ApiListener, Callers
from hypervisor.api.request_stats import RequestStats
from hypervisor.api.server import Server
from hypervisor.api.sockets import tcp_sockets, unix_socket, warn_of_open_metrics
from hypervisor.config.secrets import read_process_token, read_token
from hypervisor.config.settings import Settings
from hypervisor.errors import ConfigError
from hypervisor.node.node import Node

UNIX_BACKLOG, TCP_BACKLOG = 4096, 1024
"""Connections that wait to be accepted."""
LATE_S = 0.02
"""Time in which the connections that were accepted last get their answer."""
SHUTDOWN_S = 2.0


class Endpoints:
    """`stats` counts requests; `metrics` is served at the metrics address. Event loop only."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        server: Server,
        limits: CallerLimits,
        *,
        stats: RequestStats,
        metrics: web.Application,
    ) -> None:
        self._settings = settings
        self._node = node
        self._server = server
        self._stats = stats
        self._metrics = metrics
        self._accounts = Accounts(limits)
        self._turns = FairQueue()
        self._listeners: list[ApiListener] = []
        self._runners: list[web.AppRunner] = []

    async def open(self) -> None:
        """Listen. Raises ConfigError."""
        settings = self._settings
        by_address = callers.TcpCallers(self._accounts)
        if settings.tcp_addr:
            app = self._server.tcp_application(*tcp_tokens(settings))
            server = await self._run(self._stats.counted(app))
            for one in tcp_sockets(settings.tcp_addr, "tcp_addr"):
                self._listen(one, server, by_address, TCP_BACKLOG)
        if settings.metrics_addr:
            server = await self._run(self._metrics)
            for one in tcp_sockets(settings.metrics_addr, "metrics_addr"):
                self._listen(one, server, by_address, TCP_BACKLOG)
            warn_of_open_metrics(settings.metrics_addr)
        # Last: a client that finds the socket also finds the other endpoints.
        server = await self._run(self._stats.counted(self._server.unix_application()))
        peers, authorization = self._node.peers, self._node.authorization
        by_user = callers.UnixCallers(peers, peers.whereabouts, authorization, self._accounts)
        self._listen(unix_socket(settings.socket), server, by_user, UNIX_BACKLOG, adopt=peers.adopt)

    async def _run(self, app: web.Application) -> web.Server:
        guarded(app, self._accounts, timeout_s=self._settings.request_timeout / 1e9)
        runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_S, handle_signals=False, **SERVER_OPTIONS)
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None
        return runner.server

    def _listen(
        self,
        listener: socket.socket,
        server: web.Server,
        callers_by: Callers,
        backlog: int,
        *,
        adopt: Callable[[int], socket.socket] = lambda fd: socket.socket(fileno=fd),
    ) -> None:
        made = ApiListener(
            listener,
            server,
            callers=callers_by,
            adopt=adopt,
            turns=self._turns,
            accounts=self._accounts,
            timeout_s=self._settings.request_timeout / 1e9,
            refused=lambda count: self._node.events.counts.update({"connection_refused": count}),
        )
        self._listeners.append(made)
        made.start(backlog)

    async def close(self) -> None:
        """Answer the open requests, and stop listening."""
        self._node.commands.drain()
        for listener in self._listeners:
            listener.close()
        servers = [runner.server for runner in self._runners]
        for runner in self._runners:
            await runner.cleanup()
        await asyncio.sleep(LATE_S)
        for server in filter(None, servers):  # a connection that was just being accepted is not forgotten
            await server.shutdown(0)
        for listener in self._listeners:
            listener.end()


def tcp_tokens(settings: Settings) -> tuple[str, str]:
    """Return the tokens of operators and of processes; "" if there is none. Raises ConfigError."""
    operators, processes = settings.tcp_token_file, settings.tcp_register_token_file
    key = "tcp_register_token_file"
    operator_token = read_token(operators, "tcp_token_file") if operators else ""
    process_token = read_process_token(processes, key) if processes else ""
    if operator_token == process_token:
        raise ConfigError(key, "", "has the operators' token; processes must not be operators")
    return operator_token, process_token
