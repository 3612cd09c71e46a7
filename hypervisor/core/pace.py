# SPDX-License-Identifier: Apache-2.0
"""The values that the arbiter takes in and gives out, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypervisor.core.model import TenantName

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings of an arbiter, in ns of GPU time where nothing else is said."""

    tick_ns: int = 2 * MS
    """Wall time between two looks while anybody works."""
    quantum_ns: int = 10 * MS
    """Of one turn, which also ends after twice that in wall time."""
    run_ahead_ns: int = 4 * MS
    """What the holder of the turn may have queued."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A tenant's quota on one GPU."""

    limit_percent: int = 100
    request_percent: int = 0
    weight: int = 100
    priority: int = 2
    """1 low, 2 normal, 3 high."""
    is_suspended: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tenant's processes have written down: all of it may be wrong."""

    spent_ns: int
    outstanding_ns: int = 0
    waiting: int = 0
    queue_end_ns: int = 0
    """Monotonic clock: when what is outstanding will be done, if the GPU does nothing else; 0: it does not
    say.
    """


@dataclass(frozen=True, slots=True)
class Grant:
    """How far a tenant may go."""

    granted_ns: int
    run_ahead_ns: int
    is_shared: bool
    exclusive_from_ns: int = 0
    """Since when nobody else's work has been on the GPU, so that what passes is what is used; 0: others' may
    be.
    """


@dataclass(frozen=True, slots=True)
class Rating:
    """What the arbiter thinks of a tenant, for people."""

    takes_turns: bool
    """It keeps the GPU busy when it is let; others slip their work in beside."""
    part: float
    """Of the GPU, that it may have now."""
    rate: float
    """Of the GPU, that it had lately."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step decides."""

    grants: dict[TenantName, Grant]
    turn: TenantName | None
    """Who has the GPU to itself, tenants that slip in apart."""
    next_at_ns: int
    """When to look again, if no doorbell rings before."""
    ratings: dict[TenantName, Rating] = field(default_factory=dict)
    watched: frozenset[TenantName] = frozenset()
    """Who is to be looked at next time even if it does not ring."""
