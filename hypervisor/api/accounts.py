# SPDX-License-Identifier: Apache-2.0
"""Counts the cost of each user for the daemon, and enforces bounds.

An account belongs to a user as the kernel reports it. For a process in a pod or container it belongs to that,
since containers share user numbers. For a peer on another machine it belongs to the network address.
Operators have accounts without bounds. Event loop only.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hypervisor.errors import Refused
from hypervisor.host.descriptors import raise_limit
from hypervisor.log import Bucket

REQUEST_BURST_S = 10
"""Length of a burst that is answered at once, in seconds of the rate: all processes of a job start
together."""
MAX_REQUEST_DELAY_S = 2.0
"""Longest wait of a request above the rate; beyond that it is refused."""
MAX_USER_FRACTION = 4
"""A user holds at most one in four of the possible connections."""
MIN_RESERVE = 64
RESERVE_FRACTION = 8
"""One descriptor in eight is kept for operators, segments and the daemon itself."""
NEWS_S = 60.0
MAX_STALLED = 4
"""Largest number of unread answers of one account; the oldest is dropped for the next."""


class TooOften(Refused):
    """Requests above the rate. The answer ends the connection: its other requests are not answered."""


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """Bounds of one account and of the node."""

    connections: int
    requests_per_s: int
    descriptors: int
    """RLIMIT_NOFILE of this process."""

    @property
    def last_descriptor(self) -> int:
        """The first descriptor number that only operators' connections may have.

        The kernel assigns the lowest free number, so a connection with this number means that all lower ones
        are in use.
        """
        return self.descriptors - max(MIN_RESERVE, self.descriptors // RESERVE_FRACTION)

    @property
    def connections_of_user(self) -> int:
        return max(1, min(self.connections, self.last_descriptor // MAX_USER_FRACTION))


@dataclass(eq=False, slots=True)
class CallerAccount:
    """One user's open connections and recent requests."""

    name: str
    is_operator: bool = False
    connections: int = 0
    tokens: float = 0.0
    """Requests that may be answered at once; negative while requests wait."""
    at_s: float = 0.0
    """Monotonic time at which `tokens` was right."""
    open: dict[object, None] = field(default_factory=dict)
    """Its connections, the oldest first."""
    connecting: Bucket = field(default_factory=lambda: Bucket(0.0, 0.0))
    """New connections that may be served at once."""
    refusal: bytes = b""
    """Answer to connections above the rate, once there were any."""
    news_at_s: float = -math.inf
    """Monotonic time at which the log last said so."""
    stalled: dict[object, None] = field(default_factory=dict)
    """Its connections whose answer is not being read, the oldest first."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One request of an account is begun at a time, and other accounts' between two."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One answer of an account that reads books is made at a time."""


class Accounts:
    """All accounts with connections or with a debt."""

    def __init__(self, limits: CallerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._accounts: dict[tuple[str, bool], CallerAccount] = {}

    def of(self, name: str, *, is_operator: bool = False) -> CallerAccount:
        """Return the account of this name."""
        known = self._accounts.get((name, is_operator))
        if known is None:
            now_s = self._clock()
            bucket = Bucket(self._burst, now_s)
            known = CallerAccount(name, is_operator, tokens=self._burst, at_s=now_s, connecting=bucket)
            self._accounts[name, is_operator] = known
        return known

    @property
    def _burst(self) -> float:
        return float(self.limits.requests_per_s * REQUEST_BURST_S)

    def refusal(self, account: CallerAccount, descriptor: int) -> str | None:
        """Return the reason that a new connection with this descriptor cannot be served; None if it can."""
        if account.is_operator:
            return None
        if descriptor >= self.limits.last_descriptor:
            return "no descriptors left for more connections"
        most = self.limits.connections_of_user
        if account.connections >= most:
            return f"{account.name} has {most} connections to the daemon already"
        return None

    def connects(self, account: CallerAccount) -> bool:
        """Count a new connection of an account; return False if it comes too soon after the others."""
        rate, bucket = self.limits.requests_per_s, account.connecting
        if bucket.fill(self._clock(), most=self._burst, per_s=rate) < 1:
            return False
        bucket.left -= 1
        return True

    def too_many_new(self, account: CallerAccount) -> str:
        """Return the reason that a new connection of an account is refused."""
        return f"{account.name} connects more than {self.limits.requests_per_s} times a second"

    def is_news(self, account: CallerAccount) -> bool:
        """True, once in NEWS_S, if this account's excess of connections is to be logged."""
        now_s = self._clock()
        if now_s - account.news_at_s < NEWS_S:
            return False
        account.news_at_s = now_s
        return True

    def largest(self) -> CallerAccount:
        """Return the account with the most connections, without operators."""
        bounded = [one for one in self._accounts.values() if not one.is_operator]
        return max(bounded, key=lambda one: one.connections, default=CallerAccount(""))

    def opened(self, account: CallerAccount, connection: object) -> None:
        account.connections += 1
        account.open[connection] = None

    def closed(self, account: CallerAccount, connection: object) -> None:
        account.connections -= 1
        account.open.pop(connection, None)
        account.stalled.pop(connection, None)

    def charge(self, account: CallerAccount, requests: float) -> float:
        """Count requests of an account; return the seconds that the next answer has to wait.

        Raises TooOften if that is too long; then nothing is counted.
        """
        if account.is_operator:
            return 0.0
        now_s, rate = self._clock(), self.limits.requests_per_s
        earned = (now_s - account.at_s) * rate
        account.tokens, account.at_s = min(self._burst, account.tokens + earned), now_s
        delay_s = max(0.0, (requests - account.tokens) / rate)
        if delay_s > MAX_REQUEST_DELAY_S:
            raise TooOften(503, f"{account.name} asks more than {rate} times a second")
        account.tokens -= requests
        return delay_s

    def add(self, account: CallerAccount, requests: float) -> None:
        """Add the measured cost of an answer, in requests."""
        if not account.is_operator:
            account.tokens -= requests

    def forget_idle(self) -> None:
        """Drop accounts without connections and without debt."""
        now_s, rate = self._clock(), self.limits.requests_per_s
        for key, account in list(self._accounts.items()):
            earned = (now_s - account.at_s) * rate
            is_full = account.connecting.fill(now_s, most=self._burst, per_s=rate) >= self._burst
            if account.connections == 0 and is_full and account.tokens + earned >= self._burst:
                del self._accounts[key]


def limits_of(connections: int, requests_per_s: int) -> tuple[CallerLimits, str]:
    """Return the bounds, with as many descriptors as the system allows, and why there are not more or ""."""
    descriptors, trouble = raise_limit()
    return CallerLimits(connections, requests_per_s, descriptors), trouble
