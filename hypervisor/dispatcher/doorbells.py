# SPDX-License-Identifier: Apache-2.0
"""Wait on the doorbells of all tenants at once, without holding the interpreter lock.

A tenant can ring at any rate. If it exceeds RINGS_PER_S, its doorbell is ignored until its budget is
refilled. The dispatcher then reads the tenant only with each heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from limiter._native import ffi, lib

from hypervisor.model import TenantName
from hypervisor.scheduler.types import QuantumExpiry, TurnWatch

RINGS_PER_S = 2000
BURST = 200
OWNER_FACTOR = 2
"""Ratio of the budget that all tenants of one user share to the budget of one tenant."""
SLOTS_PER_RING = 64
"""Number of slots in use whose reading costs as much as one ring."""
MAX_COUNTED = 10 * BURST
"""Bound of the rings counted at one read: a tenant can write any number."""
NO_OWNERS: Mapping[TenantName, str] = MappingProxyType({})
NEVER = (1 << 32) - 1
UINT64_MAX = (1 << 64) - 1
MAX_BELLS = int(lib.GL_MAX_BELLS)
MAX_WATCHES = int(lib.GL_MAX_NODE_DEVICES)
RATE_LIMITED, MUTED = 1, 2
"""Reasons to ignore a doorbell. RATE_LIMITED: it rang too often. MUTED: its rings cannot change the decision.
"""


class RingBudget:
    """Budget of doorbell rings, refilled at `factor` times RINGS_PER_S up to `factor` times BURST."""

    def __init__(self, now_ns: int, factor: int = 1) -> None:
        self._factor = factor
        self._left = float(BURST * factor)
        self._at_ns = now_ns

    def take(self, now_ns: int, rings: int) -> None:
        earned = (now_ns - self._at_ns) * self._factor * RINGS_PER_S / 1e9
        self._left = min(float(BURST * self._factor), self._left + earned) - rings
        self._at_ns = now_ns

    @property
    def is_left(self) -> bool:
        return self._left > 0


class Doorbells:
    """Doorbells: the daemon's own at index 0, then one for each tenant. Dispatcher thread only, except
    `ring`.
    """

    def __init__(self, *, poll: bool = False) -> None:
        self._own: Any = ffi.new("uint32_t *")
        self._bells: Any = ffi.new("struct gl_bell[]", MAX_BELLS)
        self._rang: Any = ffi.new("uint8_t[]", MAX_BELLS)
        self._bells[0].word = self._own
        self._watches: Any = ffi.new("struct gl_turn_watch[]", MAX_WATCHES)
        self._watch_count = 0
        self._places: dict[TenantName, int] = {}
        self._budgets: dict[TenantName, RingBudget] = {}
        self._owners: Mapping[TenantName, str] = NO_OWNERS
        self._owner_budgets: dict[str, RingBudget] = {}
        self._poll = poll

    def ring(self) -> None:
        """Wake the dispatcher thread. Any thread."""
        lib.gl_bell_ring(self._own)

    def listen(self, words: Mapping[TenantName, Any], owners: Mapping[TenantName, str] = NO_OWNERS) -> None:
        """Listen to exactly these doorbells. All count as rung until they are read.

        `owners`: user by tenant. The tenants of one user share a budget. Other tenants only have their own.
        """
        self._owners = owners
        self._owner_budgets = {o: b for o, b in self._owner_budgets.items() if o in set(owners.values())}
        names = list(words)[: MAX_BELLS - 1]
        self._places = {name: place for place, name in enumerate(names, start=1)}
        for name, place in self._places.items():
            bell = self._bells[place]
            bell.word, bell.seen, bell.ignored = words[name], NEVER, 0
        self._budgets.clear()  # the number of rings is not known before the first read

    def silence(self) -> None:
        """Clear the daemon's own doorbell. Call it before reading what a ring announces."""
        self._bells[0].seen = self._own[0]

    def hear(self) -> list[TenantName]:
        """Return the tenants that have rung since they were last read, except rate-limited ones."""
        lib.gl_bells_rang(self._bells, len(self._places) + 1, self._rang)
        return [
            name
            for name, place in self._places.items()
            if self._rang[place] and not self._bells[place].ignored & RATE_LIMITED
        ]

    def looked_at(self, tenant: TenantName, value: int, now_ns: int, slots: int = 0) -> None:
        """Record the read of a tenant with `slots` slots in use, after its doorbell had reached `value`."""
        place = self._places.get(tenant)
        if place is None:
            return
        bell = self._bells[place]
        budget = self._budgets.get(tenant)
        if budget is None:
            budget = self._budgets[tenant] = RingBudget(now_ns)
        else:
            rings = min((value - bell.seen) % (1 << 32), MAX_COUNTED)
            budget.take(now_ns, rings + (slots // SLOTS_PER_RING if rings else 0))
        is_left = budget.is_left and self._owner_has_left(tenant, value, bell.seen, now_ns, slots)
        rate_limited = 0 if is_left else RATE_LIMITED
        bell.seen, bell.ignored = value, bell.ignored & MUTED | rate_limited

    def _owner_has_left(self, tenant: TenantName, value: int, seen: int, now_ns: int, slots: int) -> bool:
        """Charge one read to the budget of the tenant's user. Return False if that budget is used up."""
        owner = self._owners.get(tenant)
        if owner is None:
            return True
        budget = self._owner_budgets.get(owner)
        if budget is None:
            budget = self._owner_budgets[owner] = RingBudget(now_ns, OWNER_FACTOR)
        budget.take(now_ns, 1 + slots // SLOTS_PER_RING if value != seen and seen != NEVER else 0)
        return budget.is_left

    def ignore(self, tenant: TenantName) -> None:
        """Ignore a tenant's doorbell until the next `listen`."""
        place = self._places.get(tenant)
        if place is not None:
            self._bells[place].ignored |= RATE_LIMITED

    def mute(self, tenant: TenantName, *, is_muted: bool) -> None:
        """Mute or unmute a doorbell. A muted one does not wake the dispatcher, but `hear` reports it."""
        place = self._places.get(tenant)
        if place is not None:
            bell = self._bells[place]
            bell.ignored = bell.ignored & RATE_LIMITED | (MUTED if is_muted else 0)

    def set_turn_watch(self, place: int, watch: TurnWatch | None, usage: Any = None, device: int = 0) -> None:
        """Set or remove the turn watch of the GPU with index `place`. `wait` ends when it expires. `usage`
        must stay mapped meanwhile.
        """
        if watch is None:
            none = self._watches[place]
            none.usage, none.expired, none.used_up_ns = ffi.NULL, 0, 0
            return
        self._watch_count = max(self._watch_count, place + 1)
        figures = (min(max(0, figure), UINT64_MAX) for figure in watch[1:])  # a tenant can write any number
        self._watches[place] = (usage, device, 0, *figures)

    def is_expired(self, place: int) -> bool:
        """True if the turn watch of this GPU has expired."""
        return bool(self._watches[place].expired)

    def quantum_expiry(self, place: int) -> QuantumExpiry | None:
        """Return the moment at which the turn watch of this GPU found the quantum used up, or None."""
        watch = self._watches[place]
        return QuantumExpiry(watch.used_up_ns, watch.left_ns) if watch.used_up_ns else None

    def clear_turn_watches(self) -> None:
        """Remove all turn watches."""
        for place in range(self._watch_count):
            self.set_turn_watch(place, None)
        self._watch_count = 0

    def wait(self, deadline_ns: int) -> None:
        """Sleep until a doorbell rings, a turn watch expires, or the deadline by CLOCK_MONOTONIC."""
        count = len(self._places) + 1
        lib.gl_bells_wait(self._bells, count, self._watches, self._watch_count, deadline_ns, self._poll)
