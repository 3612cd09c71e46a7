# SPDX-License-Identifier: Apache-2.0
"""Decides the quota in force for a tenant; `reservations` checks if it fits beside other quotas.

Pod annotation > operator's call > configuration file > slices of cards > default: the first of these with a
quota is the ceiling, and a process's environment can only lower it. Outside pods, without a call and without
an entry in the file, `admission` decides: the environment proposes the quota (`propose`), the default holds
(`fixed`), or the process is refused (`deny`).

A gang is no limit, so it is decided separately: the strongest source that names one. An annotation or a table
of the file that only names a gang leaves the limits to the sources below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypervisor.errors import Refused
from hypervisor.model import NO_QUOTA, Admission, EffectiveQuota, Source, TenantName
from limiter.quota import PriorityClass, Quota, Rule

GangWord = tuple[str | None, Source | None]
"""A quota's gang, and its source."""


@dataclass(slots=True)
class QuotaSources:
    """Quotas from all sources except the processes' environments."""

    admission: Admission = "propose"
    default: Quota = NO_QUOTA
    config: Mapping[str, Quota] = field(default_factory=dict)
    """Quotas of the configuration file, by the tenant's name."""
    api: dict[TenantName, Quota] = field(default_factory=dict)
    pods: dict[TenantName, Quota] = field(default_factory=dict)
    """Quotas in the annotations of pods."""
    slices: Mapping[TenantName, Quota] = field(default_factory=dict)
    """Quotas that pods' slices of cards stand for."""

    def ceiling(self, tenant: TenantName) -> EffectiveQuota | None:
        """Return the strongest quota for this tenant in particular; None if there is none.

        Its gang comes from the strongest source with a gang, even if that source has no limits.
        """
        said: tuple[tuple[Source, Quota | None], ...] = (
            ("pod", self.pods.get(tenant)),
            ("api", self.api.get(tenant)),
            ("config", self.config.get(tenant)),
        )
        found: EffectiveQuota | None = None
        for source, quota in said:
            if quota is not None:
                effective = with_gang(EffectiveQuota(quota, source), (quota.gang, source))
                found = (
                    effective
                    if found is None
                    else with_gang(effective, (found.quota.gang, found.gang_source))
                )
                if not has_only_gang(found):
                    break
        return found

    def resolve(
        self, tenant: TenantName, pod_uid: str | None, proposed: Quota, *, proposal_applied: bool = False
    ) -> EffectiveQuota:
        """Return the quota of a tenant whose first process proposes one. Raises Refused.

        `proposal_applied`: the proposal already set the tenant's quota once, and no longer lowers anything.
        """
        said = self.ceiling(tenant)
        words: list[GangWord] = [(said.quota.gang, said.gang_source)] if said is not None else []
        ceiling = with_slices(None if said and has_only_gang(said) else said, self.slices.get(tenant))
        if ceiling is None and self.admission == "deny" and pod_uid is None:
            raise Refused(403, f"tenant {tenant} has no quota here, and unknown ones are not admitted")
        effective = ceiling or EffectiveQuota(self.default, "default")
        if ceiling is None and self.admission == "propose" and pod_uid is None:
            words.append((proposed.gang, "environment"))
            if proposed.has_limits:
                effective = EffectiveQuota(replace(proposed, tenant=None), "environment")
        effective = with_gang(effective, *words, (self.default.gang, "default"))
        return effective if ceiling is not None and proposal_applied else capped_by(effective, proposed)


def with_slices(ceiling: EffectiveQuota | None, of_slices: Quota | None) -> EffectiveQuota | None:
    """Return a ceiling combined with the quota of a pod's slices.

    The slices are the quota of a pod that has no other. If annotations leave memory or request open, the
    slices set it. Annotations only hold for the pod's own cards.
    """
    if of_slices is None or (ceiling is not None and ceiling.source != "pod"):
        return ceiling
    if ceiling is None:
        return EffectiveQuota(of_slices, "slices")
    said = ceiling.quota
    request = said.request_percent
    if request is None and not said.compute:
        request = of_slices.request_percent
    return EffectiveQuota(
        replace(said, memory=rules_for_slices(said.memory, of_slices.memory), request_percent=request), "pod"
    )


def rules_for_slices(said: tuple[Rule, ...], slices: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return rules for all cards as rules for the cards of the slices; without rules, those of the slices."""
    everywhere = next((rule for rule in said if rule.device == "*"), None)
    if not said:
        return slices
    if everywhere is None or len(said) > 1:
        return said
    return tuple(replace(everywhere, device=rule.device) for rule in slices)


def with_gang(effective: EffectiveQuota, *said: GangWord) -> EffectiveQuota:
    """Return a quota with the first gang in `said`, and its source; the strongest source comes first."""
    gang, source = next((one for one in said if one[0] is not None), (None, None))
    return replace(effective, quota=replace(effective.quota, gang=gang), gang_source=source)


def has_only_gang(said: EffectiveQuota) -> bool:
    """True if a quota has a gang and no limit. An operator's call always states the whole quota."""
    return said.source != "api" and said.quota.gang is not None and not said.quota.has_limits


def capped_by(effective: EffectiveQuota, wish: Quota) -> EffectiveQuota:
    """Return a quota, lowered by a process's environment."""
    is_off = wish.gang == "off" and effective.quota.gang != "off"
    by = "environment" if is_off else effective.gang_source
    return replace(effective, quota=capped(effective.quota, wish), gang_source=by)


def capped(ceiling: Quota, wish: Quota) -> Quota:
    """Return the ceiling with a process's request, weight and priority where they are lower.

    Memory and compute limits stay: each process limits itself to the smaller of the tenant's and its own.
    """
    priority = ceiling.priority or "normal"
    if wish.priority is not None and PriorityClass.of(wish.priority) < PriorityClass.of(priority):
        priority = wish.priority
    return replace(
        ceiling,
        request_percent=smaller(ceiling.request_percent, wish.request_percent),
        weight=smaller(ceiling.weight, wish.weight),
        priority=priority if ceiling.priority or wish.priority else None,
        memory_wait_s=smaller(ceiling.memory_wait_s, wish.memory_wait_s),
        gang="off" if wish.gang == "off" else ceiling.gang,
    )


def smaller(ceiling: int | None, wish: int | None) -> int | None:
    """Return the smaller number; None if there is no ceiling."""
    return ceiling if ceiling is None or wish is None else min(ceiling, wish)
