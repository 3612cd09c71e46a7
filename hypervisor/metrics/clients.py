# SPDX-License-Identifier: Apache-2.0
"""From what books, quotas and NVML say of tenants on cards to what is served of them.

Keeps what one look alone cannot tell: peaks, differences since the last look, moving averages. Pure: time
comes in as an argument. All numbers out of books may be wrong; one that cannot be true is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypervisor.metrics.baseline import Baselines
from hypervisor.metrics.observations import (
    Key,
    ProcessObservation,
    RateWindow,
    TenantObservation,
    UsageCounters,
    bounded,
    denied_of,
    in_use,
    launches_of,
    nvml_of,
    plus,
    promised_memory,
    seconds,
    tracked_by,
)
from hypervisor.metrics.snapshot import ClientView
from hypervisor.model import TenantName
from hypervisor.scheduler.fair_share import entitlements
from limiter.units import PERCENT

MS = 1_000_000
THROTTLED_PART = 0.1


@dataclass(slots=True)
class ClientHistory:
    """Counters kept of a tenant on a card."""

    books: UsageCounters | None = None
    waiting: int = 0
    peak_bytes: int = 0
    energy_joules: float = 0.0
    launches: Counter[str] = field(default_factory=Counter)
    """Sum over all its processes, ended ones included."""
    launches_of: dict[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    view: ClientView | None = None
    view_at_ns: int = 0


class ClientAggregator:
    """All tenants on all cards."""

    def __init__(self, *, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._past: dict[Key, ClientHistory] = {}
        self._baselines = Baselines()
        self.windows: dict[Key, RateWindow] = {}
        self.entitled: dict[Key, float] = {}

    def step(
        self,
        observations: Sequence[TenantObservation],
        *,
        now_ns: int,
        elapsed_ns: int,
        energy: Mapping[str, float],
    ) -> tuple[ClientView, ...]:
        """Return the tenants' views; `energy` is what each card used since the last look, in joules."""
        keys = {look.key for look in observations}
        self._past = {key: past for key, past in self._past.items() if key in keys}
        self._baselines.keep({(h.host_pid, h.start_ticks) for look in observations for h in look.held})
        for look in observations:
            self._count_launches(look, self._past.setdefault(look.key, ClientHistory()))
            for held in look.held:
                if held.nvml_bytes is not None:
                    who = (held.host_pid, held.start_ticks)
                    self._baselines.note((*who, look.gpu.uuid), held.nvml_bytes, held.tracked_bytes)
        self.windows = {look.key: self._window(look, elapsed_ns) for look in observations}
        self.entitled = entitled_to(observations, self.windows)
        self._share_energy(observations, elapsed_ns, energy)
        return tuple(self._view(look, now_ns, elapsed_ns) for look in observations)

    def _count_launches(self, look: TenantObservation, past: ClientHistory) -> None:
        """Add what living processes have launched since: their own counts go when they do."""
        if look.books is None:
            return
        now = {(h.host_pid, h.start_ticks): launches_of(h.launches) for h in look.held}
        for who, counts in now.items():
            before = past.launches_of.get(who, {})
            for kind, count in counts.items():
                past.launches[kind] += max(0, count - before.get(kind, 0))
        past.launches_of = dict(now)

    def _window(self, look: TenantObservation, elapsed_ns: int) -> RateWindow:
        past = self._past[look.key]
        before, now = past.books, look.books
        waited_before, past.waiting = past.waiting, look.waiting
        past.books = now
        if before is None or now is None or before.created_ns != now.created_ns or not elapsed_ns:
            return RateWindow()
        # No tenant has more than the whole card.
        spent_ns = min(elapsed_ns, max(0, now.spent_ns - before.spent_ns))
        throttled_ns = max(0, now.throttled_ns - before.throttled_ns)
        is_starved = bool(waited_before and look.waiting) and spent_ns == 0
        return RateWindow(spent_ns, throttled_ns > elapsed_ns * THROTTLED_PART or is_starved, is_starved)

    def _share_energy(
        self, observations: Iterable[TenantObservation], elapsed_ns: int, energy: Mapping[str, float]
    ) -> None:
        """Book each card's energy by GPU time; energy of an idle card is booked to no tenant."""
        used: dict[str, int] = {}
        for look in observations:
            used[look.gpu.uuid] = used.get(look.gpu.uuid, 0) + self.windows[look.key].spent_ns
        for look in observations:
            joules = energy.get(look.gpu.uuid, 0.0)
            whole_ns = max(elapsed_ns, used[look.gpu.uuid], 1)
            self._past[look.key].energy_joules += joules * self.windows[look.key].spent_ns / whole_ns

    def _view(self, look: TenantObservation, now_ns: int, elapsed_ns: int) -> ClientView:
        past = self._past[look.key]
        if look.books is None and past.view is not None and now_ns - past.view_at_ns <= self._ttl_ns:
            return replace(past.view, state=look.state)
        view = ClientView(
            who=look.who,
            gpu_uuid=look.gpu.uuid,
            gpu_index=look.gpu.index,
            gpu_id=look.gpu.label,
            mig_profile=look.gpu.mig.profile if look.gpu.mig is not None else "",
            values={**self._promised(look), **self._had(look, elapsed_ns), **self._memory(look, past)},
            launches=dict(past.launches) if look.books else {},
            denied=denied_of(look.books),
            pod={
                "pod_gpu_sm_util": self._percent(look, elapsed_ns),
                "pod_gpu_memory_used": in_use(look),
                "pod_total_gpu_memory": promised_memory(look),
            },
            source=look.source,
            state=look.state,
            gang=look.gang,
        )
        if look.books is not None:
            past.view, past.view_at_ns = view, now_ns
        return view

    def _percent(self, look: TenantObservation, elapsed_ns: int) -> float | None:
        if look.books is None or not elapsed_ns:
            return None
        return PERCENT * self.windows[look.key].spent_ns / elapsed_ns

    def _promised(self, look: TenantObservation) -> dict[str, float | None]:
        return {
            "client_memory_quota_bytes": look.memory_quota_bytes,
            "client_core_quota_config_percent": look.terms.limit_percent,
            "client_core_quota_effective_percent": self._effective_percent(look),
            "client_core_request_percent": look.terms.request_percent,
            "client_weight": look.terms.weight,
            "client_share_entitled_ratio": self.entitled.get(look.key),
        }

    def _effective_percent(self, look: TenantObservation) -> float:
        """Return the limit, or the part that is due while another tenant works too."""
        if look.terms.is_suspended:
            return 0
        others = any(
            key[1] == look.gpu.uuid and key != look.key and window.spent_ns
            for key, window in self.windows.items()
        )
        due = self.entitled.get(look.key)
        return look.terms.limit_percent if due is None or not others else due * PERCENT

    def _had(self, look: TenantObservation, elapsed_ns: int) -> dict[str, float | None]:
        books, window = look.books, self.windows[look.key]
        if books is None:
            return {}
        limit_ms = elapsed_ns / MS * self._effective_percent(look) / PERCENT
        usage_ms = window.spent_ns / MS
        debt_ns = 0 if look.granted_ns is None else max(0, books.spent_ns - look.granted_ns)
        is_over = look.granted_ns is not None and books.spent_ns >= look.granted_ns
        return {
            "client_core_window_usage_ms": usage_ms if elapsed_ns else None,
            "client_core_window_limit_ms": limit_ms if elapsed_ns else None,
            "client_core_usage_ratio": usage_ms / limit_ms if limit_ms else None,
            "client_throttled": int(window.is_throttled),
            "client_pending_drop": int(is_over and look.outstanding_ns > 0 and not look.has_turn),
            "client_quota_debt_ms": debt_ns / MS if look.is_counted else None,
            "client_gpu_seconds_total": seconds(books.spent_ns),
            "client_throttled_seconds_total": seconds(books.throttled_ns),
            "client_share_achieved_ratio": window.spent_ns / elapsed_ns if elapsed_ns else None,
            # The energy of one MIG device cannot be measured.
            "client_energy_joules_total": None
            if look.gpu.mig is not None
            else self._past[look.key].energy_joules,
        }

    def _memory(self, look: TenantObservation, past: ClientHistory) -> dict[str, float | None]:
        if look.books is None:
            return {}
        tracked = tracked_by(look)
        if tracked is not None:
            past.peak_bytes = max(past.peak_bytes, tracked)
        nvml = nvml_of(look.held)
        baselines = [
            self._baselines.of((h.host_pid, h.start_ticks, look.gpu.uuid))
            for h in look.held
            if h.nvml_bytes is not None
        ]
        overhead = sum(b for b in baselines if b is not None) if any(baselines) else None
        quota = look.memory_quota_bytes
        used = [n for n in (in_use(look), nvml) if n is not None]
        return {
            "client_managed_allocated_bytes": tracked,
            "client_managed_allocated_peak_bytes": past.peak_bytes or tracked,
            "client_nvml_used_bytes": nvml,
            "client_memory_overhead_baseline_bytes": overhead,
            "client_memory_need_estimated_bytes": plus(tracked, overhead),
            "client_memory_need_upper_bytes": plus(tracked, nvml),
            "client_memory_quota_exceeded": int(0 < quota < max(used, default=0)),
        }

    def processes(
        self, observations: Iterable[TenantObservation], views: Iterable[ClientView]
    ) -> tuple[ClientView, ...]:
        """Return the views of single processes; what is the tenant's as a whole is that of each."""
        return tuple(
            self._process(look, view, held)
            for look, view in zip(observations, views, strict=True)
            for held in look.held
        )

    def _process(self, look: TenantObservation, view: ClientView, held: ProcessObservation) -> ClientView:
        baseline = self._baselines.of((held.host_pid, held.start_ticks, look.gpu.uuid))
        tracked = bounded(held.tracked_bytes, look.gpu.memory_bytes)
        values = {name: value for name, value in view.values.items() if name in OF_TENANT}
        values |= {
            "client_managed_allocated_bytes": tracked,
            "client_nvml_used_bytes": held.nvml_bytes,
            "client_memory_overhead_baseline_bytes": baseline,
            "client_memory_need_estimated_bytes": plus(tracked, baseline),
            "client_memory_need_upper_bytes": plus(tracked, held.nvml_bytes),
            "client_gpu_seconds_total": seconds(held.spent_ns),
        }
        return replace(
            view,
            who=replace(view.who, command=held.command),
            client_id=held.client_id,
            host_pid=held.host_pid,
            values=values,
            launches=launches_of(held.launches),
            denied={},
        )


OF_TENANT = frozenset(
    {
        "client_memory_quota_bytes",
        "client_memory_quota_exceeded",
        "client_core_quota_config_percent",
        "client_core_quota_effective_percent",
        "client_core_request_percent",
        "client_weight",
        "client_throttled",
        "client_pending_drop",
    }
)


def entitled_to(
    observations: Iterable[TenantObservation], windows: Mapping[Key, RateWindow]
) -> dict[Key, float]:
    """Return what part of its card is each one's due, beside those active now."""
    by_gpu: dict[str, list[TenantObservation]] = {}
    for look in observations:
        if look.is_counted:
            by_gpu.setdefault(look.gpu.uuid, []).append(look)
    due: dict[Key, float] = {}
    for here in by_gpu.values():
        active = {
            TenantName(x.who.tenant): x.terms
            for x in here
            if (windows[x.key].spent_ns or x.waiting) and not x.terms.is_suspended
        }
        shares = entitlements(active)
        for look in here:
            name = TenantName(look.who.tenant)
            own = shares.get(name)
            due[look.key] = entitlements({**active, name: look.terms})[name] if own is None else own
    return due
