# SPDX-License-Identifier: Apache-2.0
"""State of one tenant on one GPU: the GPU time it used, how it uses it, and the budget left.

There are two kinds of tenants. A backlogged tenant keeps the queue full and gets exclusive turns, because
measured time is exact only while no other tenant runs. A tenant that uses little, or spends its time on the
host between launches, would waste an exclusive turn. It runs interleaved with the holder, within its share.
"""

from __future__ import annotations

import math

from hypervisor.scheduler.token_bucket import TokenBucket
from hypervisor.scheduler.turn_utilization import TurnUtilization
from hypervisor.scheduler.types import (
    MAX_USAGE_STEP_NS,
    MS,
    TURN_IDLE_TIMEOUT_NS,
    Grant,
    SchedParams,
    TenantUsage,
)
from limiter.units import PERCENT

BACKLOGGED_AT_NS, NOT_BACKLOGGED_AT_NS, MAX_DEMAND_NS = 8 * MS, 1 * MS, 12 * MS
DEMAND_DECAY = 0.5
"""Fraction of a GPU. A tenant whose demand stays below it loses the state "backlogged"."""
SATURATED_FRACTION = 0.85
"""On a saturated GPU the hardware gives every active context an equal time slice. A tenant that uses this
fraction of its slice is assumed to want more.
"""
MAX_PAUSE_OTHERS_NS = 20 * MS
RECENT_USE_NS = 2 * MS
STARVED_AT_NS, RECOVERED_AT_NS = 3 * MS, MS // 2
"""Outstanding work at which an interleaved tenant counts as starved, and at which it no longer does."""
RATE_WINDOW_NS = 50 * MS
ACTIVE_NS = 50 * MS
"""A tenant that has been idle for this time does not count as active."""
RECENTLY_ACTIVE_NS = 1_000 * MS
LIMIT_BURST_NS, LIMIT_RESUME_NS = 100 * MS, 20 * MS
GANG_LIMIT_RESUME_NS = 60 * MS
"""The same for a tenant of a gang. A gang stops and resumes as a whole, which costs a switch on each GPU."""
REQUEST_BURST_NS, REQUEST_MAX_DEBT_NS = 50 * MS, 20 * MS
REQUEST_MIN_DEBT_NS = 20 * MS
"""GPU time, more than one turn."""
INTERLEAVE_BURST_NS, INTERLEAVE_MAX_DEBT_NS = 20 * MS, 100 * MS
MIN_GRANT_NS = 1 * MS
"""GPU time that an interleaved tenant must earn before its first grant after a pause."""
QUEUES_WINDOW_NS, MAX_QUEUES = 200 * MS, 16.0
PARK_NS = 5 * MS
"""Time for which a waiting tenant without a grant is not updated, if time alone may change its state."""
IDLE_PARK_NS = 500 * MS
"""The same if time alone cannot change its state."""
LAUNCH_GAP_NS = MS // 4
"""Upper bound of the gap between two launches of one inference request."""


class Entity:
    """One tenant on one GPU. `share` is the fraction of the GPU that it may have now, set by the scheduler.

    Values that follow from the counters and the clock are computed once per update, because the scheduler
    reads them many times per step.
    """

    def __init__(self, seen: TenantUsage, now_ns: int) -> None:
        self.terms = SchedParams()
        self.entitlement = 1.0
        self.share = 1.0
        self.max_lag_ns = 0.0
        """Bound of the lag of vruntime. Set by `Entitlements`."""
        self.seen = seen
        self.vruntime_ns = 0.0
        """GPU time divided by entitlement. The lowest is next."""
        self.rate = 0.0
        self.is_backlogged = False
        self.utilization = TurnUtilization()
        self.was_blocked_at_ns = -ACTIVE_NS
        self.grant = Grant(seen.spent_ns, 0, is_shared=True)
        self._demand_ns = 0.0
        self.queue_end_ns = now_ns - ACTIVE_NS
        self._work_end_ns = self.queue_end_ns
        """Expected end of the tenant's work. An idle tenant rings when it begins, so its work is assumed to
        begin just before the update.
        """
        self.has_begun = False
        """True if the tenant was idle before the last update and has work since."""
        self.spent_last_ns = 0
        """GPU time spent between the last two updates."""
        self._spent_at_ns = now_ns - ACTIVE_NS
        self._at_ns = now_ns
        self.interleave_bucket = TokenBucket(
            INTERLEAVE_BURST_NS, level_ns=2 * MS, max_debt_ns=INTERLEAVE_MAX_DEBT_NS
        )
        self._limit = TokenBucket(LIMIT_BURST_NS, level_ns=LIMIT_RESUME_NS / 2)
        self._request = TokenBucket(
            REQUEST_BURST_NS, max_debt_ns=REQUEST_MAX_DEBT_NS, min_debt_ns=REQUEST_MIN_DEBT_NS
        )
        self._is_out_of_limit = False
        self._pause_credit_ns = 0
        """Time for which other tenants may be paused. Grows by the GPU time that this tenant is charged."""
        self.hardware_share = 1.0
        """Fraction of the GPU that the hardware gives an interleaved tenant. Set by the scheduler."""
        self.is_starved = False
        """True if the tenant runs interleaved inside its request and its outstanding work grows."""
        self.pauses_others = False
        """True if other tenants are paused until this tenant is no longer starved. Set by `Preemption`."""
        self.is_coordinated = False
        """True if the tenant gets GPU time only in its gang's turns. Set by `Scheduler.coordinate`."""
        self.is_shut_out = False
        """True if the tenant gets no GPU time while a gang has its turn. Set by `Scheduler.coordinate`."""
        self._queues = 1.0
        self.parked_until_ns = 0
        """Time before which an entity with unchanged counters is not updated."""
        self.derive()

    def update(self, seen: TenantUsage, now_ns: int, *, charge_rate: float = 0.0) -> int:
        """Bring the state up to `now_ns`; return the GPU time spent since the last call.

        `charge_rate`: GPU time charged to all tenants per wall time, see `MAX_CHARGE_RATE`.
        """
        elapsed_ns = max(0, now_ns - self._at_ns)
        before_ns, spent_now_ns = self.seen.spent_ns, seen.spent_ns
        # A counter that decreased belongs to a new segment. A counter that jumped is wrong.
        spent_ns = min(max(0, spent_now_ns - before_ns), MAX_USAGE_STEP_NS)
        self._at_ns, self.seen = now_ns, seen
        self._note_queues(seen.waiting, elapsed_ns)
        self.has_begun = False
        if spent_now_ns != before_ns:
            self._spent_at_ns = now_ns
            self.has_begun = self._work_end_ns <= now_ns - elapsed_ns
            self._work_end_ns = (now_ns if self.has_begun else self._work_end_ns) + spent_ns
            self.queue_end_ns = max(self.queue_end_ns, now_ns - elapsed_ns) + spent_ns
        if self.waits_for_grant:
            self.was_blocked_at_ns = now_ns
        self._count(spent_ns, elapsed_ns, max(1.0, charge_rate), is_full=charge_rate >= SATURATED_FRACTION)
        self.spent_last_ns = spent_ns
        self.derive()
        return spent_ns

    def extend_work(self, ns: int) -> None:
        """Extend the expected end of this tenant's work by `ns` of other tenants' work on the GPU."""
        self._work_end_ns += ns
        self.derive()

    @property
    def queues(self) -> int:
        """Estimated number of threads with their own queue: the recent maximum that waited, at least 1."""
        return max(1, round(self._queues))

    def _note_queues(self, waiting: int, elapsed_ns: int) -> None:
        """Update the decaying maximum of the number of threads that wait at the same time."""
        if waiting == self._queues:
            return
        lost = min(1.0, elapsed_ns / QUEUES_WINDOW_NS) * (self._queues - waiting)
        self._queues = float(waiting) if waiting > self._queues else self._queues - lost
        self._queues = min(MAX_QUEUES, self._queues)

    @property
    def waits_for_grant(self) -> bool:
        """True if the tenant waits for a grant, not only for its own work to finish."""
        seen, grant = self.seen, self.grant
        return seen.waiting > 0 and grant.is_shared and grant.granted_ns <= seen.spent_ns

    def park(self) -> None:
        """Set the time until which only a change of counters, quota or share can change this state.

        A tenant is parked in two cases. It waits without a grant and without work in flight, until a bucket
        is filled. Or it has been idle until every average has decayed. In both cases it rings when it does
        something.
        """
        if self.seen.waiting:
            is_still = self.waits_for_grant and self.queue_end_ns <= self._at_ns and not self._is_out_of_limit
            park_ns = self._park_ns() if is_still else 0
        else:
            is_still = not self.is_active and not self.has_gpu_work and not self.seen.outstanding_ns
            park_ns = IDLE_PARK_NS if is_still else 0
        self.parked_until_ns = self._at_ns + park_ns

    def _park_ns(self) -> int:
        if not self.takes_turns:
            return min(PARK_NS, self.interleave_bucket.wall_ns_until(self.min_grant_ns, self.share))
        if not self.terms.request_percent or self.is_inside_request:
            return IDLE_PARK_NS
        until_inside_ns = self._request.wall_ns_until(1, self.terms.request_percent / PERCENT)
        return min(IDLE_PARK_NS, max(PARK_NS, until_inside_ns))

    @property
    def min_grant_ns(self) -> int:
        """Tokens that an interleaved tenant needs before its next grant after a pause."""
        return min(MIN_GRANT_NS, int(INTERLEAVE_BURST_NS * self.share / 2))

    def _count(self, spent_ns: int, elapsed_ns: int, inflation: float, *, is_full: bool) -> None:
        # The demand of a tenant that waits, for a grant or for its own work, does not decay.
        is_fed = (
            is_full and not self.is_inside_request and self.rate >= SATURATED_FRACTION * self.hardware_share
        )
        drained_ns = 0.0 if self.seen.waiting or is_fed else elapsed_ns * DEMAND_DECAY
        self._demand_ns = min(MAX_DEMAND_NS, max(0.0, self._demand_ns + spent_ns - drained_ns))
        self.is_backlogged = self._demand_ns >= (
            NOT_BACKLOGGED_AT_NS if self.is_backlogged else BACKLOGGED_AT_NS
        )
        if elapsed_ns:
            gain = 1.0 - math.exp(-elapsed_ns / RATE_WINDOW_NS)
            self.rate += (spent_ns / elapsed_ns - self.rate) * gain
        limit = self.terms.limit_percent / PERCENT
        self._limit.advance(elapsed_ns, spent_ns, limit)
        self._request.advance(elapsed_ns, spent_ns, self.terms.request_percent / PERCENT)
        paused_ns = elapsed_ns if self.pauses_others else 0
        self._pause_credit_ns = min(MAX_PAUSE_OTHERS_NS, self._pause_credit_ns + spent_ns - paused_ns)
        self.interleave_bucket.advance(elapsed_ns, spent_ns / inflation, self.share)
        self.vruntime_ns += spent_ns / max(self.entitlement, 0.01)
        enough = 0.0 if not self._is_out_of_limit else self._limit_resume_ns * limit
        self._is_out_of_limit = limit < 1.0 and self._limit.level_ns <= enough

    def derive(self) -> None:
        """Compute the derived values. Call it again when `utilization` has changed."""
        seen, terms, at_ns = self.seen, self.terms, self._at_ns
        is_waiting, idle_ns = seen.waiting > 0, at_ns - self._spent_at_ns
        has_turns = self.is_backlogged and self.utilization.takes_turns(at_ns)
        self.takes_turns = has_turns or self.is_coordinated
        """True if the tenant runs in turns: its own if it is backlogged and uses them, or its gang's."""
        self.is_runnable = not terms.is_suspended and not self._is_out_of_limit
        """True if the tenant is neither suspended nor over its limit."""
        self.wants_turn = is_waiting and has_turns and self.is_runnable and not self.is_coordinated
        """True if the tenant waits for a turn of its own."""
        self.is_active = is_waiting or idle_ns < ACTIVE_NS or self.is_coordinated
        """True if the tenant waits, used the GPU within ACTIVE_NS, or `is_coordinated` is set."""
        self.is_competing = self.is_active and (
            self.is_runnable or (self.is_coordinated and not terms.is_suspended)
        )
        """True if the tenant is active and counts when the GPU is divided. A gang that its limit pauses still
        counts: its turns are paced by the time that the other tenants get meanwhile.
        """
        self.was_lately_active = is_waiting or idle_ns < RECENTLY_ACTIVE_NS
        """True if the tenant waits or used the GPU within RECENTLY_ACTIVE_NS."""
        self.is_inside_request = terms.request_percent > 0 and self._request.level_ns > 0
        """True if the tenant has received less GPU time than its request guarantees."""
        self.rank = -terms.priority if self.is_inside_request else 0
        """Minus the priority class while the tenant is inside its request, else 0. The lowest rank is first.
        """
        end_ns = min(max(seen.queue_end_ns, self.queue_end_ns), self._work_end_ns)
        self.backlog_ns = max(0, min(seen.outstanding_ns, end_ns - at_ns))
        """GPU time of the work that is still in flight: the outstanding work less the time that has passed.
        The tenant reports when the work ends. The GPU time charged to the tenant bounds that report.
        """
        least_ns = RECOVERED_AT_NS if self.is_starved else STARVED_AT_NS
        may_be = (
            self.is_inside_request and self.is_runnable and not self.takes_turns and self._pause_credit_ns > 0
        )
        # Work stays outstanding until the tenant polls it. If the tenant launches no more, its work is taken
        # to be done.
        is_at_it = self.backlog_ns > 0 or idle_ns < RECENT_USE_NS
        self.is_starved = may_be and is_at_it and seen.outstanding_ns >= least_ns
        if not seen.outstanding_ns:
            self._work_end_ns = min(self._work_end_ns, at_ns)
        self.remaining_ns = self._work_end_ns - at_ns
        """Upper bound of the time until the tenant's work ends. Negative if it has ended."""
        self.has_gpu_work = is_waiting or self.remaining_ns > -LAUNCH_GAP_NS
        """True if the tenant waits, or has had work on the GPU within LAUNCH_GAP_NS."""
        wants_more = self.takes_turns or at_ns - self.was_blocked_at_ns < ACTIVE_NS
        self.demand = 1.0 if wants_more else round(self.rate * 1.25 + 0.02, 2)
        """Fraction of the GPU that the tenant would use if it could."""

    @property
    def has_work(self) -> bool:
        """True if the tenant waits for GPU time or had work within TURN_IDLE_TIMEOUT_NS."""
        return self.seen.waiting > 0 or self.idle_ns(self._at_ns) < TURN_IDLE_TIMEOUT_NS

    def idle_ns(self, now_ns: int) -> int:
        """Return the time since the tenant's last work ended, by its charges. Negative while it has work."""
        return now_ns - max(self._spent_at_ns, self.queue_end_ns)

    @property
    def limit_left_ns(self) -> int:
        """GPU time that the limit allows now."""
        if self.terms.limit_percent >= PERCENT:
            return 1 << 62
        return max(0, int(self._limit.level_ns)) if self.is_runnable else 0

    def limit_wait_ns(self) -> int:
        """Return the wall time until the limit allows the next grant."""
        limit = self.terms.limit_percent / PERCENT
        return self._limit.wall_ns_until(self._limit_resume_ns * limit, limit)

    @property
    def _limit_resume_ns(self) -> int:
        return GANG_LIMIT_RESUME_NS if self.is_coordinated else LIMIT_RESUME_NS
