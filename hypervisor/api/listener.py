# SPDX-License-Identifier: Apache-2.0
"""Accepts connections and ends those that cost without asking.

Whose a connection is, is known before it is served: a user with too many is told so and hung up on. A
connection has a deadline in each phase: for a whole header, for the next request, for reading the answer.
When descriptors run out, accepting pauses, and the peers that wait are told by a descriptor kept for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from hypervisor.api.accounts import MAX_STALLED, Accounts, CallerAccount
from hypervisor.api.fair_queue import FairQueue
from hypervisor.host.descriptors import OF_DESCRIPTORS, Spare, shortage_of
from hypervisor.log import account_in_log

logger = logging.getLogger(__name__)
MAX_ACCEPTED = 64
"""At once, before other work of the loop is done."""
MAX_ACCEPT_S = 0.002
PAUSE_S = 0.2
"""Pause in accepting after a shortage."""
IDLE_S = 75.0
"""Time that a connection is kept for its next request."""
SWEEP_S = 0.5
LINGER_S = 0.5
MAX_LINGERING = 16
"""Refused connections that are kept open for LINGER_S."""
MAX_READ = 1 << 14
"""Bytes that are read, and parsed, at once."""
GONE = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR)
Identify = Callable[[socket.socket], CallerAccount]
UserOf = Callable[[socket.socket], str]


class ApiConnection(asyncio.Protocol):
    """Passes a connection's events on to the HTTP protocol, and keeps its deadline."""

    def __init__(self, http: Any, account: CallerAccount, listener: ApiListener) -> None:
        self.account = account
        self._http = http
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._is_busy = False
        self._has_begun = True
        """Bytes of the next request have come, or are due since it has just connected."""
        self._due_s = time.monotonic() + listener.timeout_s
        self._stalled_at_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if hasattr(transport, "max_size"):
            transport.max_size = MAX_READ
        self._listener.connections.add(self)
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take what has come; it is parsed when it is this account's turn, and no more is read until then."""
        if not self._is_busy and not self._has_begun:
            self._has_begun = True
            self._due_s = time.monotonic() + self._listener.timeout_s
        assert self._transport is not None
        self._transport.pause_reading()
        self._listener.turns.put(self.account.name, lambda: self._parse(data))

    def _parse(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.resume_reading()  # before: what parses may pause it for reasons of its own
            self._http.data_received(data)

    def eof_received(self) -> bool | None:
        result: bool | None = self._http.eof_received()
        return result

    def pause_writing(self) -> None:
        self._stalled_at_s = time.monotonic()
        stalled = self.account.stalled
        if len(stalled) >= MAX_STALLED and not self.account.is_operator:
            oldest = next(iter(stalled))
            assert isinstance(oldest, ApiConnection)
            del stalled[oldest]
            oldest.abort()
        stalled[self] = None
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._stalled_at_s = None
        self.account.stalled.pop(self, None)
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.connections.discard(self)
        self._listener.accounts.closed(self.account, self)
        self._http.connection_lost(exc)

    def request_began(self) -> None:
        """A whole header has come; what comes next has deadlines of its own."""
        self._is_busy = True

    def request_ended(self) -> None:
        """The answer is about to be written; the next request may follow."""
        self._is_busy, self._has_begun = False, False
        self._due_s = time.monotonic() + IDLE_S

    @property
    def is_waiting(self) -> bool:
        """True if no request is being answered."""
        return not self._is_busy and self._stalled_at_s is None

    def is_late(self, now_s: float) -> bool:
        if self._stalled_at_s is not None:
            return now_s - self._stalled_at_s > self._listener.timeout_s
        return not self._is_busy and now_s > self._due_s

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class ApiListener:
    """One listening socket. `serve` makes the HTTP protocol of a connection; `identify` may raise OSError.

    `user_of` says at once, without looking at the peer's process, whose turn a new connection waits for.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[], Any],
        *,
        user_of: UserOf,
        identify: Identify,
        turns: FairQueue,
        accounts: Accounts,
        timeout_s: float,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.accounts = accounts
        self.turns = turns
        self.timeout_s = timeout_s
        self.connections: set[ApiConnection] = set()
        self._socket = listener
        self._serve = serve
        self._user_of = user_of
        self._identify = identify
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._spare = Spare()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._is_open = False
        self._lingering: list[socket.socket] = []

    def start(self, backlog: int) -> None:
        """Begin to accept."""
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self._is_open = True
        self._resume()
        self._sweep()

    def close(self) -> None:
        """Accept no more; connections go on."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
        self._socket.close()
        self._spare.close()
        for refused in list(self._lingering):
            self._close_refused(refused)

    def _resume(self) -> None:
        if self._is_open:
            self._spare.keep()
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        end_s = time.monotonic() + MAX_ACCEPT_S
        for _ in range(MAX_ACCEPTED):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in GONE:
                    self._pause(error)
                    return
                continue
            self._queue(connection)
            if time.monotonic() > end_s:
                return

    def _queue(self, connection: socket.socket) -> None:
        """Let a connection wait for its user's turn, if not too many do."""
        try:
            connection.setblocking(False)
            user = f"new connections of {self._user_of(connection)}"
        except OSError:  # it has gone
            connection.close()
            return
        if self.turns.waiting(user) >= self.accounts.limits.connections_of_user:
            self._refuse(connection, user, f"too many {user}")
            return
        self.turns.put(user, lambda: self._take(connection))

    def _take(self, connection: socket.socket) -> None:
        """Serve a connection, or tell its peer why not."""
        try:
            account = self._identify(connection)
        except Exception as error:  # not served: there is no account to charge
            why = shortage_of(error) or str(error)
            self._refuse(connection, "unknown", why)
            return
        reason = self.accounts.refusal(account, connection.fileno())
        if reason is not None and not self._make_room(account):
            self._refuse(connection, account.name, reason)
            return
        task = self._loop.create_task(self._start(connection, account))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self, account: CallerAccount) -> bool:
        """End a connection that asks nothing, for a new one of this account; False if all are in use.

        It is the oldest of the account's own, or of the account that has the most where that has more.
        """
        largest = self.accounts.largest()
        for owner in (account, largest) if largest.connections > account.connections else (account,):
            for connection in owner.open:
                if isinstance(connection, ApiConnection) and connection.is_waiting:
                    del owner.open[connection]
                    connection.abort()
                    return True
        return False

    async def _start(self, connection: socket.socket, account: CallerAccount) -> None:
        made = ApiConnection(self._serve(), account, self)
        self.accounts.opened(account, made)
        try:
            await self._loop.connect_accepted_socket(lambda: made, connection)
        except Exception as error:
            self.accounts.closed(account, made)
            connection.close()
            if not isinstance(error, ConnectionError):
                logger.warning("cannot serve a connection of %s: %s", account.name, error)

    def _refuse(self, connection: socket.socket, name: str, reason: str) -> None:
        self._refused()
        charged = account_in_log.set(name)
        logger.warning("connection refused: %s", reason)
        account_in_log.reset(charged)
        with contextlib.suppress(OSError):
            connection.send(refusal(reason), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            connection.shutdown(socket.SHUT_WR)
        self._linger(connection)

    def _linger(self, connection: socket.socket) -> None:
        """Close a refused connection a little later: a peer that still writes would not read the answer."""
        self._lingering.append(connection)
        self._loop.call_later(LINGER_S, self._close_refused, connection)
        if len(self._lingering) > MAX_LINGERING:
            self._close_refused(self._lingering[0])

    def _close_refused(self, connection: socket.socket) -> None:
        if connection in self._lingering:
            self._lingering.remove(connection)
            connection.close()

    def _pause(self, error: OSError) -> None:
        """Descriptors or memory have run out: say so to the peers that wait, and accept later."""
        self._loop.remove_reader(self._socket)
        reason = shortage_of(error) or os.strerror(error.errno or 0)
        logger.error("cannot accept connections: %s", reason)
        if error.errno in OF_DESCRIPTORS:
            self._refuse_waiting(reason)
        self._timers.append(self._loop.call_later(PAUSE_S, self._resume_later))

    def _resume_later(self) -> None:
        self._timers.clear()
        self._resume()

    def _refuse_waiting(self, reason: str) -> None:
        for _ in range(MAX_ACCEPTED):
            if not self._spare.give():
                return
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._spare.keep()
                return
            self._refuse(connection, "unknown", reason)
            self._close_refused(connection)
            self._spare.keep()

    def _sweep(self) -> None:
        """End the connections that are late."""
        if not self._is_open and not self.connections:
            return
        now_s = time.monotonic()
        for connection in [c for c in self.connections if c.is_late(now_s)]:
            connection.abort()
        self.accounts.forget_idle()
        self._loop.call_later(SWEEP_S, self._sweep)


def refusal(reason: str) -> bytes:
    """Return an answer of status 503 that says why, in its body and in a header."""
    line = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in reason)
    body = f'{{"error": "{line}"}}'
    return (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Gpulimit-Error: {line}\r\nRetry-After: 1\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode("ascii")
