# SPDX-License-Identifier: Apache-2.0
"""Sleeps on the doorbells of all tenants at once, without holding the interpreter.

A tenant can ring as often as it likes, so one that rings without pause is left out until it has paid for
it: it is then looked at with the tick like everybody else.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from limiter._native import ffi, lib

from hypervisor.core.model import TenantName

RINGS_PER_S = 2000
BURST = 200
MOST_BELLS = int(lib.GL_MAX_BELLS)


class Allowance:
    """How often one tenant may still ring."""

    def __init__(self, now_ns: int) -> None:
        self._left = float(BURST)
        self._at_ns = now_ns

    def take(self, now_ns: int, rings: int) -> None:
        earned = (now_ns - self._at_ns) * RINGS_PER_S / 1e9
        self._left = min(float(BURST), self._left + earned) - rings
        self._at_ns = now_ns

    @property
    def is_left(self) -> bool:
        return self._left > 0


class Doorbells:
    """The daemon's own bell and one for each tenant."""

    def __init__(self, *, poll: bool = False) -> None:
        self._own: Any = ffi.new("uint32_t *")
        self._bells: Any = ffi.new("struct gl_bell[]", MOST_BELLS)
        self._seen: dict[TenantName, int] = {}
        self._allowances: dict[TenantName, Allowance] = {}
        self._poll = poll

    def ring(self) -> None:
        """Wake the sleeper; from any thread."""
        lib.gl_bell_ring(self._own)

    def own_value(self) -> int:
        """Return a value for `wait`: take it before looking at what the ring announces."""
        return int(self._own[0])

    def wait(
        self, words: Mapping[TenantName, tuple[Any, int]], own: int, *, now_ns: int, deadline_ns: int
    ) -> TenantName | None:
        """Sleep until a bell rings or the deadline; return the tenant whose bell cannot be slept on, if any.

        `words`: by tenant, where its doorbell is and the value when it was last looked at.
        """
        self._bells[0].word, self._bells[0].seen = self._own, own
        order: list[TenantName] = []
        for tenant, (word, value) in words.items():
            if self.may_ring(tenant, value, now_ns) and len(order) + 1 < MOST_BELLS:
                order.append(tenant)
                self._bells[len(order)].word, self._bells[len(order)].seen = word, value
        result = lib.gl_bells_wait(self._bells, len(order) + 1, deadline_ns, self._poll)
        if result == -errno.EFAULT:
            return self._broken(order)
        return None

    def may_ring(self, tenant: TenantName, value: int, now_ns: int) -> bool:
        """Whether a tenant, whose doorbell has come to a value, is listened to now."""
        allowance = self._allowances.get(tenant)
        if allowance is None:
            allowance = self._allowances[tenant] = Allowance(now_ns)
        rings = (value - self._seen.get(tenant, value)) % (1 << 32)
        self._seen[tenant] = value
        allowance.take(now_ns, min(rings, BURST * 10))
        return allowance.is_left

    def _broken(self, order: list[TenantName]) -> TenantName | None:
        """Return the first tenant whose word is gone."""
        for place, tenant in enumerate(order, start=1):
            one = ffi.addressof(self._bells, place)
            if lib.gl_bells_wait(one, 1, 0, 1) == -errno.EFAULT:
                return tenant
        return None

    def forget(self, tenant: TenantName) -> None:
        self._seen.pop(tenant, None)
        self._allowances.pop(tenant, None)
