# SPDX-License-Identifier: Apache-2.0
"""Which quota holds for a tenant; `reservations` says whether it fits beside the others.

Pod annotation > operator's call > configuration file > slices of cards > default: the first of these that
says something is the ceiling, and a process's environment can only lower it. Outside pods, where neither
call nor file says anything, the environment proposes (`propose`), is held to the default (`fixed`), or the
process is turned away (`deny`).

A gang is no limit, so it is the strongest that was said by itself: an annotation or a table of the file that
names a gang alone leaves the limits to what comes below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypervisor.errors import Refused
from hypervisor.model import NO_QUOTA, Admission, EffectiveQuota, Source, TenantName
from limiter.quota import PriorityClass, Quota, Rule

GangWord = tuple[str | None, Source | None]
"""A quota's gang, and who said it."""


@dataclass(slots=True)
class QuotaSources:
    """All that was said about quotas by others than the processes themselves."""

    admission: Admission = "propose"
    default: Quota = NO_QUOTA
    config: Mapping[str, Quota] = field(default_factory=dict)
    """By tenant's name."""
    api: dict[TenantName, Quota] = field(default_factory=dict)
    pods: dict[TenantName, Quota] = field(default_factory=dict)
    """What pods are annotated with."""
    slices: Mapping[TenantName, Quota] = field(default_factory=dict)
    """What pods' slices of cards mean."""

    def ceiling(self, tenant: TenantName) -> EffectiveQuota | None:
        """Return the strongest quota that was said for this tenant in particular.

        Its gang is the strongest that was said, also where that names no limits.
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

        `proposal_applied`: the proposal was followed before; it has had its say, and lowers nothing any more.
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
    """Return a ceiling with what a pod's slices of cards mean.

    They are the quota of a pod that has no other. Annotations that leave memory or request open leave it to
    the slices, and are for the pod's own cards alone.
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
    """Return what is said of all cards as rules for those that slices are of; without a word, the slices."""
    everywhere = next((rule for rule in said if rule.device == "*"), None)
    if not said:
        return slices
    if everywhere is None or len(said) > 1:
        return said
    return tuple(replace(everywhere, device=rule.device) for rule in slices)


def with_gang(effective: EffectiveQuota, *said: GangWord) -> EffectiveQuota:
    """Return a quota with the first gang that was said, and by whom; the strongest comes first."""
    gang, source = next((one for one in said if one[0] is not None), (None, None))
    return replace(effective, quota=replace(effective.quota, gang=gang), gang_source=source)


def has_only_gang(said: EffectiveQuota) -> bool:
    """True if a gang and no limit is said. An operator's call always states the whole quota."""
    return said.source != "api" and said.quota.gang is not None and not said.quota.has_limits


def capped_by(effective: EffectiveQuota, wish: Quota) -> EffectiveQuota:
    """Return a quota as a process's environment lowers it."""
    is_off = wish.gang == "off" and effective.quota.gang != "off"
    by = "environment" if is_off else effective.gang_source
    return replace(effective, quota=capped(effective.quota, wish), gang_source=by)


def capped(ceiling: Quota, wish: Quota) -> Quota:
    """Return the ceiling with the shares that a process asks for where they are less.

    Memory and compute limits are left alone: each process holds itself to the smaller of the tenant's and
    its own.
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
    """Return the smaller number; without a ceiling there is nothing to lower."""
    return ceiling if ceiling is None or wish is None else min(ceiling, wish)
