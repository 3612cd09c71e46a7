# SPDX-License-Identifier: Apache-2.0
"""Accepts connections, and ends those that occupy resources without a request.

The user of a connection is known before it is served. A user with too many connections, or too many new ones
per second, gets a refusal and is disconnected. All users share the kernel's queue, so even refused
connections are accepted first and leave it at once. If descriptors run out, accepting pauses, and waiting
peers get an answer through a reserved descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hypervisor.api.accounts import Accounts, CallerAccount
from hypervisor.api.callers import Caller
from hypervisor.api.connection import ApiConnection
from hypervisor.api.fair_queue import FairQueue
from hypervisor.host.arrivals import Arrival, Arrivals
from hypervisor.host.descriptors import OF_DESCRIPTORS, Spare, shortage_of
from hypervisor.log import account_in_log

logger = logging.getLogger(__name__)
MAX_ACCEPTED = 128
"""Largest number of connections that are accepted before the event loop runs other tasks."""
MAX_ACCEPT_S = 0.002
PAUSE_S = 0.2
"""Pause in accepting after a shortage."""
SWEEP_S = 0.5
MAX_ENDED, MORE_S = 64, 0.005
"""Number of late connections that are ended together, and the seconds until the next ones."""
LINGER_S = 0.5
MAX_LINGERING = 16
"""Largest number of refused connections that are kept open for LINGER_S."""


class Callers(Protocol):
    """Identifies connections: `caller` at once, for every new one; `account` for those whose turn it is."""

    def caller(self, arrival: Arrival) -> Caller:
        """Return the caller whose turn a connection waits for. Raises OSError if it is closed."""
        ...

    def account(self, connection: socket.socket, caller: Caller) -> CallerAccount:
        """Return the account of a connection. Raises Refused."""
        ...


class ApiListener:
    """One listening socket. `serve` makes the HTTP protocol of a connection, `callers` identifies it, and
    `adopt`
    makes a socket of its descriptor.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[], Any],
        *,
        callers: Callers,
        turns: FairQueue,
        accounts: Accounts,
        timeout_s: float,
        adopt: Callable[[int], socket.socket],
        refused: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.accounts = accounts
        self.turns = turns
        self.timeout_s = timeout_s
        self.connections: set[ApiConnection] = set()
        self._socket = listener
        self._serve = serve
        self._callers = callers
        self._adopt = adopt
        self._arrivals = Arrivals(listener, MAX_ACCEPTED)
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
        """Stop accepting; open connections continue."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
        self._socket.close()
        self._arrivals.close()
        self._spare.close()
        for refused in list(self._lingering):
            self._close_refused(refused)

    def end(self) -> None:
        """End the connections without a request."""
        for connection in list(self.connections):
            connection.abort()

    def _resume(self) -> None:
        if self._is_open:
            self._spare.keep()
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        end_s = time.monotonic() + MAX_ACCEPT_S
        while True:
            try:
                came = self._arrivals.accept()
            except OSError as error:
                self._pause(error)
                return
            self._let_in(came)
            if len(came) < MAX_ACCEPTED or time.monotonic() > end_s:
                return

    def _let_in(self, came: Sequence[Arrival]) -> None:
        """Queue connections for their users' turns, and refuse those above the rate."""
        too_often: dict[CallerAccount, list[int]] = {}
        for arrival in came:
            try:
                caller = self._callers.caller(arrival)
            except OSError:  # the connection is closed
                os.close(arrival.fd)
                continue
            if not caller.may_operate:
                account = self.accounts.of(caller.name)
                if not self.accounts.connects(account):
                    too_often.setdefault(account, []).append(arrival.fd)
                    continue
            self._queue(self._adopt(arrival.fd), caller)
        for account, fds in too_often.items():
            self._turn_away(account, fds)

    def _queue(self, connection: socket.socket, caller: Caller) -> None:
        """Queue a connection for its user's turn, unless too many wait."""
        connection.setblocking(False)
        turn = f"new connections of {caller.name}"
        if self.turns.waiting(turn) >= self.accounts.limits.connections_of_user:
            self._refuse(connection, caller.name, f"too many {turn}")
            return
        self.turns.put(turn, lambda: self._take(connection, caller))

    def _turn_away(self, account: CallerAccount, fds: Sequence[int]) -> None:
        """Refuse connections above the rate, at the least cost."""
        self._refused(len(fds))
        if self.accounts.is_news(account):
            self._log_refusal(account.name, self.accounts.too_many_new(account))
        account.refusal = account.refusal or refusal(self.accounts.too_many_new(account))
        self._arrivals.turn_away(fds, account.refusal)

    def _take(self, connection: socket.socket, caller: Caller) -> None:
        """Serve a connection, or send its peer the reason of a refusal."""
        try:
            account = self._callers.account(connection, caller)
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
        """End a connection without a request, for a new one of this account; False if all are in use.

        It is the oldest of this account or, if another account has more connections, of the one with the
        most.
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
        made = ApiConnection(self._serve, account, self)
        self.accounts.opened(account, made)
        try:
            await self._loop.connect_accepted_socket(lambda: made, connection)
        except Exception as error:
            self.accounts.closed(account, made)
            connection.close()
            if not isinstance(error, ConnectionError):
                logger.warning("cannot serve a connection of %s: %s", account.name, error)

    def _refuse(self, connection: socket.socket, name: str, reason: str) -> None:
        self._refused(1)
        self._log_refusal(name, reason)
        with contextlib.suppress(OSError):
            connection.send(refusal(reason), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            connection.shutdown(socket.SHUT_WR)
        self._linger(connection)

    def _log_refusal(self, name: str, reason: str) -> None:
        charged = account_in_log.set(name)
        logger.warning("connection refused: %s", reason)
        account_in_log.reset(charged)

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
        """Handle a shortage of descriptors or memory: answer the waiting peers, and accept again later."""
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
        """End the connections whose deadline has passed."""
        if not self._is_open and not self.connections:
            return
        now_s = time.monotonic()
        late = [c for c in self.connections if c.is_late(now_s)]
        for connection in late[:MAX_ENDED]:
            connection.abort()
        if len(late) > MAX_ENDED:
            self._loop.call_later(MORE_S, self._sweep)
            return
        self.accounts.forget_idle()
        self._loop.call_later(SWEEP_S, self._sweep)


def refusal(reason: str) -> bytes:
    """Return an answer of status 503 with the reason in its body and in a header."""
    line = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in reason)
    body = f'{{"error": "{line}"}}'
    return (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Gpulimit-Error: {line}\r\nRetry-After: 1\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode("ascii")
