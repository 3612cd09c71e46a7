# SPDX-License-Identifier: Apache-2.0
"""One client's connection: passes requests to the HTTP protocol one by one, and enforces deadlines.

The connection holds a header until it is complete, and creates the HTTP protocol only then. So a connection
without a request costs little. If a client sends many requests at once, they are parsed one at a time. Each
piece waits for its account's turn in the fair queue. Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from hypervisor.api.accounts import MAX_STALLED, Accounts, CallerAccount
from hypervisor.api.fair_queue import FairQueue

IDLE_S = 75.0
"""Time that an idle connection is kept open for its next request."""
MAX_READ = 1 << 14
"""Largest number of bytes per read."""
MAX_HEADER = 1 << 15
MAX_BODY_PASSED = 1 << 17
"""Largest number of bytes of one body that are passed on. No call accepts a longer body."""
END_OF_HEADER = b"\r\n\r\n"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ConnectionOwner(Protocol):
    """The listener's state that its connections share."""

    timeout_s: float
    turns: FairQueue
    accounts: Accounts
    connections: set[ApiConnection]


class ApiConnection(asyncio.Protocol):
    """Passes a connection's events to the HTTP protocol, which `serve` creates at the first whole header."""

    def __init__(self, serve: Callable[[], Any], account: CallerAccount, owner: ConnectionOwner) -> None:
        self.account = account
        self._serve = serve
        self._http: Any = None
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        """Received bytes that are not passed on yet."""
        self._searched = 0
        """Number of bytes of `_held` that have been searched for the end of a header."""
        self._is_queued = False
        """True if the connection waits for its account's turn."""
        self._is_passed = False
        """True if a header has been passed on and its request has not begun."""
        self._is_busy = False
        """True while a request is being answered."""
        self._body: Any = None
        self._body_left = 0
        self._has_begun = True
        """True if bytes of the next request have come, or the client has just connected."""
        self._due_s = time.monotonic() + owner.timeout_s
        self._stalled_at_s: float | None = None

    # ---- events of the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if hasattr(transport, "max_size"):
            transport.max_size = MAX_READ
        self._owner.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._is_busy and not self._has_begun:
            self._next_is_due(self._owner.timeout_s, has_begun=True)
        self._go_on()

    def eof_received(self) -> bool | None:
        result: bool | None = self._http.eof_received() if self._http is not None else None
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
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        self._stalled_at_s = None
        self.account.stalled.pop(self, None)
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._held.clear()
        self._owner.connections.discard(self)
        self._owner.accounts.closed(self.account, self)
        if self._http is not None:
            # Deferred until the task has started that aiohttp creates with the connection.
            asyncio.get_running_loop().call_soon(self._http.connection_lost, exc)

    # ---- events of the request guard ----

    def request_began(self, body: Any) -> None:
        """Record that a whole header has come. The body and the answer have their own deadlines.

        `body`: None, or an object whose `is_eof()` is True once the whole body has come.
        """
        self._is_busy, self._is_passed = True, False
        self._body, self._body_left = body, MAX_BODY_PASSED
        self._go_on()

    def request_ended(self) -> None:
        """Record that the answer is about to be written. The next request may follow."""
        self._is_busy = False
        has_begun = bool(self._held)
        self._next_is_due(self._owner.timeout_s if has_begun else IDLE_S, has_begun=has_begun)
        self._go_on()

    # ---- passing on, one request at a time ----

    def _next_is_due(self, within_s: float, *, has_begun: bool) -> None:
        self._has_begun = has_begun
        self._due_s = time.monotonic() + within_s

    @property
    def _has_body_to_come(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    def _next_size(self) -> int:
        """Return the number of held bytes that may be passed on now."""
        if self._has_body_to_come:
            return min(len(self._held), self._body_left)
        if self._is_busy or self._is_passed:
            return 0
        end = self._held.find(END_OF_HEADER, max(0, self._searched - len(END_OF_HEADER)))
        if end < 0:
            self._searched = len(self._held)
            return 0
        return end + len(END_OF_HEADER)

    def _go_on(self) -> None:
        """Continue reading, or pause it until the account's turn or until the current request is answered.
        Reject a header that is too long.
        """
        if self._transport is None or self._is_queued or self._transport.is_closing():
            return
        if self._next_size():
            self._is_queued = True
            self._transport.pause_reading()
            self._owner.turns.put(self.account.name, self._pass_on)
        elif self._held and (self._is_busy or self._is_passed):
            self._transport.pause_reading()
        elif len(self._held) > MAX_HEADER:
            self._transport.write(TOO_LONG)
            self._transport.close()
        else:
            self._transport.resume_reading()

    def _pass_on(self) -> None:
        self._is_queued = False
        size = self._next_size()
        if self._transport is None or not size:
            return
        if self._has_body_to_come:
            self._body_left -= size
        else:  # a whole header, or empty lines before one
            self._is_passed = bool(self._held[:size].strip())
        piece = bytes(self._held[:size])
        del self._held[:size]
        self._searched = 0
        if self._http is None:
            self._http = self._serve()
            self._http.connection_made(self._transport)
        self._http.data_received(piece)
        self._go_on()

    # ---- deadlines ----

    @property
    def is_waiting(self) -> bool:
        """True if no request is being answered and no written data is stalled."""
        return not self._is_busy and self._stalled_at_s is None

    def is_late(self, now_s: float) -> bool:
        if self._stalled_at_s is not None:
            return now_s - self._stalled_at_s > self._owner.timeout_s
        return not self._is_busy and now_s > self._due_s

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
