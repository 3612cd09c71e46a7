# SPDX-License-Identifier: Apache-2.0
"""How one tenant stands on one GPU: what it has used, how it uses it, and what it may still have.

Two kinds of tenants get on badly in one scheme. Who keeps the queue full gets exclusive turns, since
measured time is only exact when nobody else runs. Who does little, or spends its time on the host between
launches, would waste an exclusive turn: it slips its work in beside the holder's, as long as it stays
inside its part of the GPU.
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
"""Of a GPU: who demands less than this for long is light."""
SATURATED_FRACTION = 0.85
"""Beside others a card gives everybody an equal slice, whatever its part is: on a full GPU, who uses so much
of that demands more.
"""
MAX_PAUSE_OTHERS_NS = 20 * MS
RECENT_USE_NS = 2 * MS
STARVED_AT_NS, RECOVERED_AT_NS = 3 * MS, MS // 2
"""What one that slips in must have queued for the others to wait, and until when."""
RATE_WINDOW_NS = 50 * MS
ACTIVE_NS = 50 * MS
"""Who has done nothing for so long does not count among those who want the GPU."""
RECENTLY_ACTIVE_NS = 1_000 * MS
LIMIT_BURST_NS, LIMIT_RESUME_NS = 100 * MS, 20 * MS
REQUEST_BURST_NS, REQUEST_MAX_DEBT_NS = 50 * MS, 20 * MS
REQUEST_MIN_DEBT_NS = 20 * MS
"""More than a turn."""
INTERLEAVE_BURST_NS, INTERLEAVE_MAX_DEBT_NS = 20 * MS, 100 * MS
MIN_GRANT_NS = 1 * MS
"""What a tenant that slips in must have in hand to go on after it was held back."""
QUEUES_WINDOW_NS, MAX_QUEUES = 200 * MS, 16.0
PARK_NS = 5 * MS
"""How long one that waits with nothing granted is left as it stands, where time alone may change that."""
IDLE_PARK_NS = 500 * MS
"""And where it will not."""
LAUNCH_GAP_NS = MS // 4
"""Between two launches of one request."""


class Entity:
    """One tenant. `part` is what it may have of the GPU now, set by the arbiter.

    What follows from its books and the clock is worked out once, when they are taken in, since the arbiter
    asks for it many times over.
    """

    def __init__(self, seen: TenantUsage, now_ns: int) -> None:
        self.terms = SchedParams()
        self.entitlement = 1.0
        self.share = 1.0
        self.max_lag_ns = 0.0
        """How far its virtual time may be behind, set by the arbiter."""
        self.seen = seen
        self.vruntime_ns = 0.0
        """GPU time over entitlement; who has least is next."""
        self.rate = 0.0
        self.is_backlogged = False
        self.utilization = TurnUtilization()
        self.was_blocked_at_ns = -ACTIVE_NS
        self.grant = Grant(seen.spent_ns, 0, is_shared=True)
        self._demand_ns = 0.0
        self.queue_end_ns = now_ns - ACTIVE_NS
        self._work_end_ns = self.queue_end_ns
        """The same, if what was idle began just before it was looked at, since it rings."""
        self.has_begun = False
        """It was idle until just now."""
        self.spent_last_ns = 0
        """In the last step."""
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
        """No longer than it is charged for, whatever it says that is queued."""
        self.hardware_share = 1.0
        """Part of the GPU that the card gives it while it slips in; set by the arbiter."""
        self.is_starved = False
        """It slips in, inside its request, and more comes together than it is served of."""
        self.pauses_others = False
        """They wait for it to catch up; set by the arbiter."""
        self._queues = 1.0
        self.parked_until_ns = 0
        """Its books unchanged, it is not taken in again before."""
        self.derive()

    def update(self, seen: TenantUsage, now_ns: int, *, charge_rate: float = 0.0) -> int:
        """Bring everything up to now; return the GPU time spent since the last call.

        `charged`: seconds that all are charged in a second, lately; see the arbiter.
        """
        elapsed_ns = max(0, now_ns - self._at_ns)
        before_ns, spent_now_ns = self.seen.spent_ns, seen.spent_ns
        # Books that went back were begun anew, and those that leap are wrong.
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
        """Its work takes so much longer, since the GPU does as much for others, in whatever order."""
        self._work_end_ns += ns
        self.derive()

    @property
    def queues(self) -> int:
        """How many of its threads fill queues of their own, as far as is known from how many wait at once."""
        return max(1, round(self._queues))

    def _note_queues(self, waiting: int, elapsed_ns: int) -> None:
        """The most that waited lately."""
        if waiting == self._queues:
            return
        lost = min(1.0, elapsed_ns / QUEUES_WINDOW_NS) * (self._queues - waiting)
        self._queues = float(waiting) if waiting > self._queues else self._queues - lost
        self._queues = min(MAX_QUEUES, self._queues)

    @property
    def waits_for_grant(self) -> bool:
        """It waits, and not only for its own work to finish."""
        seen, grant = self.seen, self.grant
        return seen.waiting > 0 and grant.is_shared and grant.granted_ns <= seen.spent_ns

    def park(self) -> None:
        """Work out until when nothing but its books, its quota or its part can change where it stands.

        It waits, with nothing granted and nothing under way, until a bucket is filled again; or it has done
        nothing for so long that all that fades away has. It rings when it does something.
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
        """What must have come together before one that slips in and was held back goes on."""
        return min(MIN_GRANT_NS, int(INTERLEAVE_BURST_NS * self.share / 2))

    def _count(self, spent_ns: int, elapsed_ns: int, inflation: float, *, is_full: bool) -> None:
        # Who waits, for time or for its own work to finish, demands as much as it did before.
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
        enough = 0.0 if not self._is_out_of_limit else LIMIT_RESUME_NS * limit
        self._is_out_of_limit = limit < 1.0 and self._limit.level_ns <= enough

    def derive(self) -> None:
        """Work out what follows from all that; again when `fill` has changed."""
        seen, terms, at_ns = self.seen, self.terms, self._at_ns
        is_waiting, idle_ns = seen.waiting > 0, at_ns - self._spent_at_ns
        self.takes_turns = self.is_backlogged and self.utilization.takes_turns(at_ns)
        """It keeps the GPU busy when it is let."""
        self.is_runnable = not terms.is_suspended and not self._is_out_of_limit
        """Neither suspended nor over its limit."""
        self.wants_turn = is_waiting and self.takes_turns and self.is_runnable
        """It waits for a turn."""
        self.is_active = is_waiting or idle_ns < ACTIVE_NS
        """It wants the GPU, or did a moment ago."""
        self.was_lately_active = is_waiting or idle_ns < RECENTLY_ACTIVE_NS
        """It may come back any time."""
        self.is_inside_request = terms.request_percent > 0 and self._request.level_ns > 0
        """It has had less than it is guaranteed."""
        self.rank = -terms.priority if self.is_inside_request else 0
        """Classes inside their requests come first; the lower the sooner."""
        end_ns = min(max(seen.queue_end_ns, self.queue_end_ns), self._work_end_ns)
        self.backlog_ns = max(0, min(seen.outstanding_ns, end_ns - at_ns))
        """GPU time of work that should still be under way: less than is outstanding, if time has passed
        since. When it ends is its own word, between the bounds that its charges give.
        """
        least_ns = RECOVERED_AT_NS if self.is_starved else STARVED_AT_NS
        may_be = (
            self.is_inside_request and self.is_runnable and not self.takes_turns and self._pause_credit_ns > 0
        )
        # What nobody looked at stays outstanding, so who launches no more has to be believed that it is done.
        is_at_it = self.backlog_ns > 0 or idle_ns < RECENT_USE_NS
        self.is_starved = may_be and is_at_it and seen.outstanding_ns >= least_ns
        if not seen.outstanding_ns:
            self._work_end_ns = min(self._work_end_ns, at_ns)
        self.remaining_ns = self._work_end_ns - at_ns
        """How long its work lasts at most; less than 0 if it has ended."""
        self.has_gpu_work = is_waiting or self.remaining_ns > -LAUNCH_GAP_NS
        """It has work on the GPU, had until just now, or waits to put some there."""
        wants_more = self.takes_turns or at_ns - self.was_blocked_at_ns < ACTIVE_NS
        self.demand = 1.0 if wants_more else round(self.rate * 1.25 + 0.02, 2)
        """Part of the GPU that it would take if it could."""

    @property
    def has_work(self) -> bool:
        """It uses the GPU, or would if it was let."""
        idle_ns = self._at_ns - max(self._spent_at_ns, self.queue_end_ns)
        return self.seen.waiting > 0 or idle_ns < TURN_IDLE_TIMEOUT_NS

    @property
    def limit_left_ns(self) -> int:
        """What its limit still allows now."""
        if self.terms.limit_percent >= PERCENT:
            return 1 << 62
        return max(0, int(self._limit.level_ns)) if self.is_runnable else 0

    def limit_wait_ns(self) -> int:
        """Return how long until its limit allows it to go on."""
        limit = self.terms.limit_percent / PERCENT
        return self._limit.wall_ns_until(LIMIT_RESUME_NS * limit, limit)
