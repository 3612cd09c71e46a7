# SPDX-License-Identifier: Apache-2.0
"""Maps pods to tenants: the tenant of a container's process, the quotas of a pod's tenants, and their changes
when the pod changes or ends.

Event loop only. It makes no request: the controller passes the cluster's data in.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from hypervisor.errors import Refused
from hypervisor.model import NO_QUOTA, Gpu, Origin, PodRef, TenantName
from hypervisor.node.node import Node
from hypervisor.node.registry import Tenant
from hypervisor.pods.pod import Container, Pod, PodChanges, Pods, pod_of
from hypervisor.pods.quota import PodQuotas, peak, quotas_of
from limiter.quota import Quota
from limiter.segment import MAX_TENANT_NAME_BYTES
from limiter.units import show_bytes

logger = logging.getLogger(__name__)
HASH_DIGITS = 8
MORE_THAN_ANY = 1 << 50
"""Bytes; more than any card has."""
UNKNOWN_GROUP = "this control group may be a container's of a runtime that is not known here"
PostEvent = Callable[[Pod, str, str], None]
"""Posts an Event about a pod: (pod, reason in one word, sentence)."""


class PodTenants:
    """The pods of this node and their tenants. `post_event` posts an Event about a pod. `wanted` is called if
    a
    process registers whose pod is not known yet.
    """

    def __init__(
        self, node: Node, *, post_event: PostEvent, wanted: Callable[[], None] = lambda: None
    ) -> None:
        self.pods = Pods()
        self.quotas: dict[str, PodQuotas] = {}
        """Quotas by pod UID."""
        self.unreadable = 0
        """Number of objects that are no valid pods."""
        self._node = node
        self._post_event = post_event
        self._wanted = wanted
        self._pending_quota: set[TenantName] = set()
        """Tenants that keep another quota than their pod's, because that does not fit beside the others."""
        self._size_unchecked: set[str] = set()
        """Pods whose quotas were read before the cards were known."""
        self._is_complete = False
        """True once a whole list has arrived: a pod that is not known then does not exist."""

    # ---- what the cluster says ----

    def on_list(self, items: Iterable[Any], *, is_whole: bool) -> None:
        """Apply a list of pods. `is_whole`: pods that are missing in it are gone."""
        self._apply(self.pods.replace(self._parse_pods(items), is_whole=is_whole))
        if is_whole and not self._is_complete:
            self._is_complete = True
            for tenant in list(self._node.registry.tenants.values()):
                self.on_adopted(tenant)

    def merge_list(self, items: Iterable[Any], *, is_trusted: bool) -> bool:
        """Take the container ids from a list and, if it is trusted, unknown pods; return True if there were
        any.
        """
        pods = self._parse_pods(items)
        for pod in pods:
            known = self.pods.get(pod.uid)
            if known is not None and known.title == pod.title:
                self.pods.put(replace(known, containers=pod.containers))
        unknown = [pod for pod in pods if self.pods.get(pod.uid) is None and not pod.has_ended]
        if is_trusted:
            self._apply(self.pods.replace(unknown, is_whole=False))
        return is_trusted and bool(unknown)

    def on_put(self, item: Any) -> None:
        """Handle a new or changed pod."""
        for pod in self._parse_pods([item]):
            self._apply(self.pods.put(pod))

    def on_removed(self, item: Any) -> None:
        """Handle a deleted pod."""
        for pod in self._parse_pods([item]):
            self._apply(self.pods.remove(pod))

    def _parse_pods(self, items: Iterable[Any]) -> list[Pod]:
        pods = []
        for item in items:
            try:
                pods.append(pod_of(item))
            except ValueError:
                self.unreadable += 1
        return pods

    def _apply(self, changes: PodChanges) -> None:
        for pod in changes.gone:
            self.quotas.pop(pod.uid, None)
            self._mark_ended(pod.uid)
        for pod in changes.put:
            self._update_pod(pod)
        if changes.gone or any(pod.has_ended for pod in changes.put):
            self._node.sweep(time.monotonic_ns())

    def on_adopted(self, tenant: Tenant) -> None:
        """Handle an adopted tenant: its pod may have changed or ended meanwhile."""
        if tenant.pod_uid is None:
            return
        pod = self.pods.get(tenant.pod_uid)
        if pod is not None and not pod.has_ended:
            tenant.pod = pod.title
            if not self.quotas[pod.uid].problems:
                self._update_quota_sources(pod, self.quotas[pod.uid])
                self._reevaluate(tenant.name, pod)
        elif pod is not None or self._is_complete:
            self._mark_ended(tenant.pod_uid)

    def _mark_ended(self, uid: str) -> None:
        """Make a pod's tenants end with their last processes."""
        registry = self._node.registry
        for tenant in registry.of_pod(uid):
            tenant.has_ended = True
        for name in [name for name in registry.sources.pods if belongs_to_pod(name, uid)]:
            if name not in registry.tenants:
                del registry.sources.pods[name]

    # ---- quotas ----

    def _update_pod(self, pod: Pod) -> None:
        """Apply a pod's quotas to its tenants."""
        quotas, before = quotas_of(pod), self.quotas.get(pod.uid)
        self.quotas[pod.uid] = quotas
        if pod.has_ended:
            self._mark_ended(pod.uid)
            return
        tenants = self._node.registry.of_pod(pod.uid)
        for tenant in tenants:
            tenant.has_ended = False
            tenant.pod = pod.title
        if quotas == before:
            return
        if quotas.problems:
            self._report_problems(pod, quotas)
            return
        self._update_quota_sources(pod, quotas)
        for tenant in tenants:
            self._reevaluate(tenant.name, pod)
            self._report_pending_restart(tenant, pod, quotas)
        self._report_oversize(pod, quotas)

    def _report_problems(self, pod: Pod, quotas: PodQuotas) -> None:
        """Report the problems of a pod's quotas; running tenants keep their previous quota."""
        running = self._node.registry.of_pod(pod.uid)
        consequence = "the quota that held so far is kept" if running else "its processes get no GPU"
        for problem in quotas.problems:
            self._post_event(pod, "QuotaInvalid", f"{problem}; {consequence}")

    def _update_quota_sources(self, pod: Pod, quotas: PodQuotas) -> None:
        sources = self._node.registry.sources.pods
        fresh: dict[TenantName, Quota] = {}
        if quotas.pod is not None:
            fresh[tenant_of(pod.uid)] = quotas.pod
        for container, quota in quotas.containers.items():
            fresh[tenant_of(pod.uid, container)] = quota
        for tenant in self._node.registry.of_pod(pod.uid):
            kept = self._retained_quota(tenant, pod, quotas) if tenant.name not in fresh else None
            if kept is not None:
                fresh[tenant.name] = kept
        for name in [name for name in sources if belongs_to_pod(name, pod.uid) and name not in fresh]:
            del sources[name]
        sources.update(fresh)

    def _retained_quota(self, tenant: Tenant, pod: Pod, quotas: PodQuotas) -> Quota | None:
        """Return the quota of a tenant that the pod no longer has, until its containers restart."""
        if tenant.name != tenant_of(pod.uid):
            return quotas.pod
        return self._node.registry.sources.pods.get(tenant.name) if quotas.containers else None

    def _reevaluate(self, name: TenantName, pod: Pod | None) -> None:
        """Apply the pod's current quota to a running tenant, if it fits."""
        try:
            if self._node.quotas.reevaluate(name) and pod is not None:
                effective = self._node.registry.tenants[name].effective
                self._post_event(
                    pod, "QuotaChanged", f"now {format_quota(effective.quota)}, by {effective.source}"
                )
            self._pending_quota.discard(name)
        except Refused as error:
            if name not in self._pending_quota and pod is not None:
                self._post_event(pod, "QuotaDoesNotFit", f"{error}; the quota that held so far is kept")
            self._pending_quota.add(name)

    def _report_pending_restart(self, tenant: Tenant, pod: Pod, quotas: PodQuotas) -> None:
        for container_id in tenant.containers:
            name = self.pods.container(pod.uid, container_id)
            if name is not None and tenant_of_container(pod, quotas, name) != tenant.name:
                text = f"container {name} goes over to the quota that is now named for it when it restarts"
                self._post_event(pod, "QuotaNeedsRestart", text)

    def _report_oversize(self, pod: Pod, quotas: PodQuotas) -> None:
        """Report a pod with more memory in its quotas than any card of this node has."""
        gpus = self._node.inventory.gpus
        if not gpus:
            self._size_unchecked.add(pod.uid)
            return
        card = max(gpus, key=lambda gpu: gpu.memory_bytes)

        def amount(container: Container) -> int:
            return named_bytes(quotas.containers.get(container.name, NO_QUOTA), card)

        most = peak(pod, amount) + named_bytes(quotas.pod or NO_QUOTA, card)
        if most > card.memory_bytes * self._node.settings.memory_overcommit // 100:
            text = f"its quota comes to {most >> 20} MiB, and no card here has more than"
            self._post_event(pod, "QuotaLargerThanCard", f"{text} {card.memory_bytes >> 20} MiB")

    def sweep(self) -> None:
        """Retry quotas that did not fit, and check pods that arrived before the cards were known."""
        if self._size_unchecked and self._node.inventory.gpus:
            unsized, self._size_unchecked = self._size_unchecked, set()
            for pod in filter(None, map(self.pods.get, unsized)):
                self._report_oversize(pod, self.quotas[pod.uid])
        for name in list(self._pending_quota):
            tenant = self._node.registry.tenants.get(name)
            if tenant is None:
                self._pending_quota.discard(name)
            else:
                self._reevaluate(name, self.pods.get(tenant.pod_uid or ""))

    # ---- processes ----

    def resolve_pod(self, origin: Origin) -> PodRef | None:
        """Return the pod and tenant of a process; None if it is in no pod. Raises Refused."""
        if origin.pod_uid is None:
            if origin.unknown_group:
                raise Refused(403, f"{UNKNOWN_GROUP}: {origin.unknown_group}")
            return None
        known = self._joined_tenant(origin)
        if known is not None:
            return known
        pod = self.pods.get(origin.pod_uid)
        if pod is None or pod.has_ended:
            self._wanted()
            raise Refused(503, f"pod {origin.pod_uid} {self._unknown_reason(pod)}")
        quotas = self.quotas[pod.uid]
        if quotas.problems:
            self._report_problems(pod, quotas)
            running = self._node.registry.tenants.get(tenant_of(pod.uid))
            if running is not None and (running.workers or running.is_adopted):
                return PodRef(running.name, pod.namespace, pod.name)
            raise Refused(422, f"pod {pod.title}: {quotas.problems[0]}")
        name = self.pods.container(pod.uid, origin.container_id)
        if name is None and quotas.containers:
            self._wanted()
            raise Refused(503, f"pod {pod.title}: the cluster does not say yet which container this is")
        return PodRef(tenant_of_container(pod, quotas, name or ""), pod.namespace, pod.name, name or "")

    def _unknown_reason(self, pod: Pod | None) -> str:
        if pod is not None:
            return "has ended"
        yet = "" if self._is_complete else " yet"
        return f"is not known here{yet}: neither the API server nor the kubelet names it"

    def _joined_tenant(self, origin: Origin) -> PodRef | None:
        """Return the pod of a container that is already in a tenant: it stays there until it restarts."""
        for tenant in self._node.registry.of_pod(origin.pod_uid or ""):
            is_there = tenant.workers or tenant.is_adopted
            if is_there and origin.container_id in tenant.containers:
                namespace, _, name = tenant.pod.partition("/")
                return PodRef(tenant.name, namespace, name)
        return None

    def pod_of(self, tenant: Tenant) -> PodRef | None:
        """Return the cluster's names of a tenant's pod, and of its container if all processes are in one."""
        if tenant.pod_uid is None:
            return None
        pod = self.pods.get(tenant.pod_uid)
        if pod is None:
            namespace, _, name = tenant.pod.partition("/")
            return PodRef(tenant.name, namespace, name) if name else None
        known = {self.pods.container(pod.uid, container_id) for container_id in tenant.containers}
        container = known.pop() if len(known) == 1 else None
        return PodRef(tenant.name, pod.namespace, pod.name, container or "")

    def invalid(self) -> list[Pod]:
        """Return the pods with invalid quotas."""
        return [pod for pod in self.pods if self.quotas[pod.uid].problems and not pod.has_ended]


def named_bytes(quota: Quota, card: Gpu) -> int:
    """Return the memory of a quota for a card, even if it is more than the card has; 0 if there is none."""
    of_card = partial(quota.memory_bytes, index=card.index, uuid=card.uuid)
    amount = of_card(MORE_THAN_ANY)
    is_share = amount != of_card(2 * MORE_THAN_ANY)
    return (of_card(card.memory_bytes) if is_share else amount) or 0


def format_quota(quota: Quota) -> str:
    """Return a quota as text: "memory 4 GiB, compute 30"."""
    values = {k.removeprefix("GPULIMIT_").lower(): v for k, v in quota.environ().items()}
    sizes = (r.memory_text() if r.is_share else f"{r.device}={show_bytes(r.amount)}" for r in quota.memory)
    values |= {"memory": ", ".join(sizes)} if quota.memory else {}
    return ", ".join(f"{name} {value}".replace("*=", "") for name, value in values.items()) or "none"


def tenant_of_container(pod: Pod, quotas: PodQuotas, container: str) -> TenantName:
    """Return the tenant of a pod's container."""
    return tenant_of(pod.uid, container if container in quotas.containers else "")


def tenant_of(pod_uid: str, container: str = "") -> TenantName:
    """Return the tenant of a pod, or of a container with its own quota. Long names are cut and get a hash."""
    if not container:
        return TenantName(f"pod-{pod_uid}")
    name = f"pod-{pod_uid}.{container}"
    if len(name) > MAX_TENANT_NAME_BYTES:
        digest = hashlib.sha256(container.encode()).hexdigest()[:HASH_DIGITS]
        name = f"{name[: MAX_TENANT_NAME_BYTES - HASH_DIGITS - 1]}-{digest}"
    return TenantName(name)


def belongs_to_pod(name: TenantName, pod_uid: str) -> bool:
    """True if a tenant is a pod's."""
    return name == f"pod-{pod_uid}" or name.startswith(f"pod-{pod_uid}.")
