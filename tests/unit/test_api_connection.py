# SPDX-License-Identifier: Apache-2.0
"""What has come over a connection goes on to the HTTP protocol request by request; on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hypervisor.api.accounts import Accounts, CallerLimits
from hypervisor.api.connection import MAX_HEADER, ApiConnection
from hypervisor.api.fair_queue import FairQueue

HEADER = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WITHIN_S = 10


class Http:
    """An HTTP protocol that writes down what it gets."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_connected = False

    def connection_made(self, _: asyncio.BaseTransport) -> None:
        self.is_connected = True

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> None: ...

    def connection_lost(self, _: Exception | None) -> None:
        self.is_connected = False


class Body:
    """A body of which so much is to come."""

    def __init__(self, http: Http, size: int) -> None:
        self._http, self._size = http, size
        self._before = sum(map(len, http.pieces))

    def is_eof(self) -> bool:
        return sum(map(len, self._http.pieces)) - self._before >= self._size


class Owner:
    """The listener's side of it."""

    def __init__(self) -> None:
        self.timeout_s = 1.0
        self.turns = FairQueue()
        self.accounts = Accounts(CallerLimits(connections=10, requests_per_s=10, descriptors=1024))
        self.connections: set[ApiConnection] = set()


class Scene:
    """A client's end of a connection, the connection, and the HTTP protocols that were made for it."""

    def __init__(self, client: socket.socket, made: ApiConnection, http: list[Http]) -> None:
        self.client, self.made, self.http = client, made, http

    async def sends(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.client, data)

    async def gets(self, *pieces: bytes) -> None:
        """Wait until the HTTP protocol has got exactly these pieces."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                while not self.http or len(self.http[0].pieces) < len(pieces):
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert self.http[0].pieces == list(pieces)


@pytest.fixture
def play() -> Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], None]:
    """Run a scenario."""

    def run(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        async def all_of_it() -> None:
            client, server = socket.socketpair()
            client.setblocking(False)
            http: list[Http] = []
            owner = Owner()

            def serve() -> Http:
                http.append(Http())
                return http[-1]

            account = owner.accounts.of("user 1")
            made = ApiConnection(serve, account, owner)
            owner.accounts.opened(account, made)
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: made, server)
            try:
                await scenario(Scene(client, made, http))
            finally:
                client.close()
                transport.abort()
                await asyncio.sleep(0.02)

        asyncio.run(all_of_it())

    return run


def test_before_a_header_is_whole_there_is_no_http_protocol(play) -> None:
    async def scenario(scene: Scene) -> None:
        for part in (HEADER[:1], HEADER[1:20], HEADER[20:-1]):
            await scene.sends(part)
            await asyncio.sleep(0.02)
            assert not scene.http
        await scene.sends(HEADER[-1:])
        await scene.gets(HEADER)

    play(scenario)


def test_of_many_requests_sent_at_once_each_waits_for_the_one_before(play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.sends(HEADER * 3)
        for count in (1, 2, 3):
            await scene.gets(*[HEADER] * count)
            scene.made.request_began(None)
            await scene.gets(*[HEADER] * count)
            scene.made.request_ended()

    play(scenario)


def test_a_body_comes_while_its_request_is_answered_and_what_follows_waits(play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.sends(HEADER)
        await scene.gets(HEADER)
        scene.made.request_began(Body(scene.http[0], 10))
        await scene.sends(b"01234")
        await scene.gets(HEADER, b"01234")
        await scene.sends(b"56789")
        await scene.gets(HEADER, b"01234", b"56789")
        await scene.sends(HEADER)
        await scene.gets(HEADER, b"01234", b"56789")
        scene.made.request_ended()
        await scene.gets(HEADER, b"01234", b"56789", HEADER)

    play(scenario)


def test_a_header_without_end_is_refused(play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.sends(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEADER)
        async with asyncio.timeout(WITHIN_S):
            said = await asyncio.get_running_loop().sock_recv(scene.client, 4096)
        assert said.startswith(b"HTTP/1.1 431 ")
        assert not scene.http

    play(scenario)


def test_empty_lines_before_a_request_do_not_count_as_one(play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.sends(b"\r\n\r\n" + HEADER)
        await scene.gets(b"\r\n\r\n", HEADER)

    play(scenario)


def test_a_header_that_begins_no_request_has_a_deadline_all_the_same(play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.sends(HEADER)
        await scene.gets(HEADER)
        loop_s = 1e12
        assert scene.made.is_late(loop_s)
        scene.made.request_began(None)
        assert not scene.made.is_late(loop_s)

    play(scenario)


def test_the_end_of_a_connection_without_requests_is_told_to_its_account(play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.client.close()
        async with asyncio.timeout(WITHIN_S):
            while scene.made.account.connections:
                await asyncio.sleep(0.001)
        assert not scene.http

    play(scenario)


def test_the_http_protocol_hears_of_the_end_after_its_task_has_begun(play) -> None:
    """aiohttp begins its task a step later than it is made, and that step needs what the end takes away."""

    async def scenario(scene: Scene) -> None:
        await scene.sends(HEADER)
        await scene.gets(HEADER)
        scene.made.connection_lost(None)
        assert scene.http[0].is_connected
        await asyncio.sleep(0)
        assert not scene.http[0].is_connected

    play(scenario)
