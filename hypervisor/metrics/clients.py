# SPDX-License-Identifier: Apache-2.0
"""Aggregates usage, quotas and NVML's values of tenants on cards into the views for metrics.

It keeps state between observations: peaks, differences since the last one, moving averages. Pure: time is an
argument. Numbers from usage segments may be wrong; an impossible one becomes None.
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
    in_use,
    launches_of,
    nvml_of,
    plus,
    promised_memory,
    refusals_by_reason,
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

    counters: UsageCounters | None = None
    waiting: int = 0
    peak_bytes: int = 0
    energy_joules: float = 0.0
    launches: Counter[str] = field(default_factory=Counter)
    """Sum over all its processes, including ended ones."""
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
        """Return the tenants' views; `energy` is each card's use since the last observation, in joules."""
        keys = {observation.key for observation in observations}
        self._past = {key: past for key, past in self._past.items() if key in keys}
        self._baselines.keep(
            {(h.host_pid, h.start_ticks) for observation in observations for h in observation.processes}
        )
        for observation in observations:
            self._count_launches(observation, self._past.setdefault(observation.key, ClientHistory()))
            for process in observation.processes:
                if process.nvml_bytes is not None:
                    who = (process.host_pid, process.start_ticks)
                    self._baselines.note(
                        (*who, observation.gpu.uuid), process.nvml_bytes, process.tracked_bytes
                    )
        self.windows = {
            observation.key: self._window(observation, elapsed_ns) for observation in observations
        }
        self.entitled = entitled_to(observations, self.windows)
        self._share_energy(observations, elapsed_ns, energy)
        return tuple(self._view(observation, now_ns, elapsed_ns) for observation in observations)

    def _count_launches(self, observation: TenantObservation, past: ClientHistory) -> None:
        """Add the new launches of living processes: their counters vanish when they end."""
        if observation.counters is None:
            return
        now = {(one.host_pid, one.start_ticks): launches_of(one.launches) for one in observation.processes}
        for who, counts in now.items():
            before = past.launches_of.get(who, {})
            for kind, count in counts.items():
                past.launches[kind] += max(0, count - before.get(kind, 0))
        past.launches_of = dict(now)

    def _window(self, observation: TenantObservation, elapsed_ns: int) -> RateWindow:
        past = self._past[observation.key]
        before, now = past.counters, observation.counters
        waited_before, past.waiting = past.waiting, observation.waiting
        past.counters = now
        if before is None or now is None or before.created_ns != now.created_ns or not elapsed_ns:
            return RateWindow()
        # No tenant has more than the whole card.
        spent_ns = min(elapsed_ns, max(0, now.spent_ns - before.spent_ns))
        throttled_ns = max(0, now.throttled_ns - before.throttled_ns)
        is_starved = bool(waited_before and observation.waiting) and spent_ns == 0
        return RateWindow(spent_ns, throttled_ns > elapsed_ns * THROTTLED_PART or is_starved, is_starved)

    def _share_energy(
        self, observations: Iterable[TenantObservation], elapsed_ns: int, energy: Mapping[str, float]
    ) -> None:
        """Assign each card's energy by GPU time; energy of an idle card is assigned to no tenant."""
        used: dict[str, int] = {}
        for observation in observations:
            used[observation.gpu.uuid] = (
                used.get(observation.gpu.uuid, 0) + self.windows[observation.key].spent_ns
            )
        for observation in observations:
            joules = energy.get(observation.gpu.uuid, 0.0)
            whole_ns = max(elapsed_ns, used[observation.gpu.uuid], 1)
            self._past[observation.key].energy_joules += (
                joules * self.windows[observation.key].spent_ns / whole_ns
            )

    def _view(self, observation: TenantObservation, now_ns: int, elapsed_ns: int) -> ClientView:
        past = self._past[observation.key]
        if (
            observation.counters is None
            and past.view is not None
            and now_ns - past.view_at_ns <= self._ttl_ns
        ):
            return replace(past.view, state=observation.state)
        view = ClientView(
            who=observation.who,
            gpu_uuid=observation.gpu.uuid,
            gpu_index=observation.gpu.index,
            gpu_id=observation.gpu.label,
            mig_profile=observation.gpu.mig.profile if observation.gpu.mig is not None else "",
            values={
                **self._promised(observation),
                **self._had(observation, elapsed_ns),
                **self._memory(observation, past),
            },
            launches=dict(past.launches) if observation.counters else {},
            denied=refusals_by_reason(observation.counters),
            pod={
                "pod_gpu_sm_util": self._percent(observation, elapsed_ns),
                "pod_gpu_memory_used": in_use(observation),
                "pod_total_gpu_memory": promised_memory(observation),
            },
            source=observation.source,
            state=observation.state,
            gang=observation.gang,
        )
        if observation.counters is not None:
            past.view, past.view_at_ns = view, now_ns
        return view

    def _percent(self, observation: TenantObservation, elapsed_ns: int) -> float | None:
        if observation.counters is None or not elapsed_ns:
            return None
        return PERCENT * self.windows[observation.key].spent_ns / elapsed_ns

    def _promised(self, observation: TenantObservation) -> dict[str, float | None]:
        return {
            "client_memory_quota_bytes": observation.memory_quota_bytes,
            "client_core_quota_config_percent": observation.terms.limit_percent,
            "client_core_quota_effective_percent": self._effective_percent(observation),
            "client_core_request_percent": observation.terms.request_percent,
            "client_weight": observation.terms.weight,
            "client_share_entitled_ratio": self.entitled.get(observation.key),
        }

    def _effective_percent(self, observation: TenantObservation) -> float:
        """Return the limit, or the share that is due while another tenant works too."""
        if observation.terms.is_suspended:
            return 0
        others = any(
            key[1] == observation.gpu.uuid and key != observation.key and window.spent_ns
            for key, window in self.windows.items()
        )
        due = self.entitled.get(observation.key)
        return observation.terms.limit_percent if due is None or not others else due * PERCENT

    def _had(self, observation: TenantObservation, elapsed_ns: int) -> dict[str, float | None]:
        counters, window = observation.counters, self.windows[observation.key]
        if counters is None:
            return {}
        limit_ms = elapsed_ns / MS * self._effective_percent(observation) / PERCENT
        usage_ms = window.spent_ns / MS
        debt_ns = 0 if observation.granted_ns is None else max(0, counters.spent_ns - observation.granted_ns)
        is_over = observation.granted_ns is not None and counters.spent_ns >= observation.granted_ns
        return {
            "client_core_window_usage_ms": usage_ms if elapsed_ns else None,
            "client_core_window_limit_ms": limit_ms if elapsed_ns else None,
            "client_core_usage_ratio": usage_ms / limit_ms if limit_ms else None,
            "client_throttled": int(window.is_throttled),
            "client_pending_drop": int(
                is_over and observation.outstanding_ns > 0 and not observation.has_turn
            ),
            "client_quota_debt_ms": debt_ns / MS if observation.is_counted else None,
            "client_gpu_seconds_total": seconds(counters.spent_ns),
            "client_throttled_seconds_total": seconds(counters.throttled_ns),
            "client_share_achieved_ratio": window.spent_ns / elapsed_ns if elapsed_ns else None,
            # The energy of one MIG device cannot be measured.
            "client_energy_joules_total": None
            if observation.gpu.mig is not None
            else self._past[observation.key].energy_joules,
        }

    def _memory(self, observation: TenantObservation, past: ClientHistory) -> dict[str, float | None]:
        if observation.counters is None:
            return {}
        tracked = tracked_by(observation)
        if tracked is not None:
            past.peak_bytes = max(past.peak_bytes, tracked)
        nvml = nvml_of(observation.processes)
        baselines = [
            self._baselines.of((h.host_pid, h.start_ticks, observation.gpu.uuid))
            for h in observation.processes
            if h.nvml_bytes is not None
        ]
        overhead = sum(b for b in baselines if b is not None) if any(baselines) else None
        quota = observation.memory_quota_bytes
        used = [n for n in (in_use(observation), nvml) if n is not None]
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
        """Return the views of single processes; values of the whole tenant appear in each of them."""
        return tuple(
            self._process(observation, view, process)
            for observation, view in zip(observations, views, strict=True)
            for process in observation.processes
        )

    def _process(
        self, observation: TenantObservation, view: ClientView, process: ProcessObservation
    ) -> ClientView:
        baseline = self._baselines.of((process.host_pid, process.start_ticks, observation.gpu.uuid))
        tracked = bounded(process.tracked_bytes, observation.gpu.memory_bytes)
        values = {name: value for name, value in view.values.items() if name in OF_TENANT}
        values |= {
            "client_managed_allocated_bytes": tracked,
            "client_nvml_used_bytes": process.nvml_bytes,
            "client_memory_overhead_baseline_bytes": baseline,
            "client_memory_need_estimated_bytes": plus(tracked, baseline),
            "client_memory_need_upper_bytes": plus(tracked, process.nvml_bytes),
            "client_gpu_seconds_total": seconds(process.spent_ns),
        }
        return replace(
            view,
            who=replace(view.who, command=process.command),
            client_id=process.client_id,
            host_pid=process.host_pid,
            values=values,
            launches=launches_of(process.launches),
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
    """Return the share of its card that is due to each client beside the active ones."""
    by_gpu: dict[str, list[TenantObservation]] = {}
    for observation in observations:
        if observation.is_counted:
            by_gpu.setdefault(observation.gpu.uuid, []).append(observation)
    due: dict[Key, float] = {}
    for here in by_gpu.values():
        active = {
            TenantName(x.who.tenant): x.terms
            for x in here
            if (windows[x.key].spent_ns or x.waiting) and not x.terms.is_suspended
        }
        shares = entitlements(active)
        for observation in here:
            name = TenantName(observation.who.tenant)
            own = shares.get(name)
            due[observation.key] = (
                entitlements({**active, name: observation.terms})[name] if own is None else own
            )
    return due
