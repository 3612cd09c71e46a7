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
    Books,
    Held,
    Key,
    Look,
    Window,
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
class Past:
    """Counters kept of a tenant on a card."""

    books: Books | None = None
    waiting: int = 0
    peak_bytes: int = 0
    energy_joules: float = 0.0
    launches: Counter[str] = field(default_factory=Counter)
    """Sum over all its processes, ended ones included."""
    launches_of: dict[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    view: ClientView | None = None
    view_at_ns: int = 0


class Clients:
    """All tenants on all cards."""

    def __init__(self, *, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._past: dict[Key, Past] = {}
        self._baselines = Baselines()
        self.windows: dict[Key, Window] = {}
        self.entitled: dict[Key, float] = {}

    def step(
        self, looks: Sequence[Look], *, now_ns: int, elapsed_ns: int, energy: Mapping[str, float]
    ) -> tuple[ClientView, ...]:
        """Return the tenants' views; `energy` is what each card used since the last look, in joules."""
        keys = {look.key for look in looks}
        self._past = {key: past for key, past in self._past.items() if key in keys}
        self._baselines.keep({(h.host_pid, h.start_ticks) for look in looks for h in look.held})
        for look in looks:
            self._count_launches(look, self._past.setdefault(look.key, Past()))
            for held in look.held:
                if held.nvml_bytes is not None:
                    who = (held.host_pid, held.start_ticks)
                    self._baselines.note((*who, look.gpu.uuid), held.nvml_bytes, held.tracked_bytes)
        self.windows = {look.key: self._window(look, elapsed_ns) for look in looks}
        self.entitled = entitled_to(looks, self.windows)
        self._share_energy(looks, elapsed_ns, energy)
        return tuple(self._view(look, now_ns, elapsed_ns) for look in looks)

    def _count_launches(self, look: Look, past: Past) -> None:
        """Add what living processes have launched since: their own counts go when they do."""
        if look.books is None:
            return
        now = {(h.host_pid, h.start_ticks): launches_of(h.launches) for h in look.held}
        for who, counts in now.items():
            before = past.launches_of.get(who, {})
            for kind, count in counts.items():
                past.launches[kind] += max(0, count - before.get(kind, 0))
        past.launches_of = dict(now)

    def _window(self, look: Look, elapsed_ns: int) -> Window:
        past = self._past[look.key]
        before, now = past.books, look.books
        waited_before, past.waiting = past.waiting, look.waiting
        past.books = now
        if before is None or now is None or before.created_ns != now.created_ns or not elapsed_ns:
            return Window()
        # No tenant has more than the whole card.
        spent_ns = min(elapsed_ns, max(0, now.spent_ns - before.spent_ns))
        throttled_ns = max(0, now.throttled_ns - before.throttled_ns)
        is_starved = bool(waited_before and look.waiting) and spent_ns == 0
        return Window(spent_ns, throttled_ns > elapsed_ns * THROTTLED_PART or is_starved, is_starved)

    def _share_energy(self, looks: Iterable[Look], elapsed_ns: int, energy: Mapping[str, float]) -> None:
        """Book each card's energy by GPU time; energy of an idle card is booked to no tenant."""
        used: dict[str, int] = {}
        for look in looks:
            used[look.gpu.uuid] = used.get(look.gpu.uuid, 0) + self.windows[look.key].spent_ns
        for look in looks:
            joules = energy.get(look.gpu.uuid, 0.0)
            whole_ns = max(elapsed_ns, used[look.gpu.uuid], 1)
            self._past[look.key].energy_joules += joules * self.windows[look.key].spent_ns / whole_ns

    def _view(self, look: Look, now_ns: int, elapsed_ns: int) -> ClientView:
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
        )
        if look.books is not None:
            past.view, past.view_at_ns = view, now_ns
        return view

    def _percent(self, look: Look, elapsed_ns: int) -> float | None:
        if look.books is None or not elapsed_ns:
            return None
        return PERCENT * self.windows[look.key].spent_ns / elapsed_ns

    def _promised(self, look: Look) -> dict[str, float | None]:
        return {
            "client_memory_quota_bytes": look.memory_quota_bytes,
            "client_core_quota_config_percent": look.terms.limit_percent,
            "client_core_quota_effective_percent": self._effective_percent(look),
            "client_core_request_percent": look.terms.request_percent,
            "client_weight": look.terms.weight,
            "client_share_entitled_ratio": self.entitled.get(look.key),
        }

    def _effective_percent(self, look: Look) -> float:
        """Return the limit, or the part that is due while another tenant works too."""
        if look.terms.is_suspended:
            return 0
        others = any(
            key[1] == look.gpu.uuid and key != look.key and window.spent_ns
            for key, window in self.windows.items()
        )
        due = self.entitled.get(look.key)
        return look.terms.limit_percent if due is None or not others else due * PERCENT

    def _had(self, look: Look, elapsed_ns: int) -> dict[str, float | None]:
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

    def _memory(self, look: Look, past: Past) -> dict[str, float | None]:
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

    def processes(self, looks: Iterable[Look], views: Iterable[ClientView]) -> tuple[ClientView, ...]:
        """Return the views of single processes; what is the tenant's as a whole is that of each."""
        return tuple(
            self._process(look, view, held)
            for look, view in zip(looks, views, strict=True)
            for held in look.held
        )

    def _process(self, look: Look, view: ClientView, held: Held) -> ClientView:
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


def entitled_to(looks: Iterable[Look], windows: Mapping[Key, Window]) -> dict[Key, float]:
    """Return what part of its card is each one's due, beside those active now."""
    by_gpu: dict[str, list[Look]] = {}
    for look in looks:
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
