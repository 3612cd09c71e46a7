# SPDX-License-Identifier: Apache-2.0
"""Follows the cluster for the daemon: the API server's watch on this node's pods, the kubelet's list while
that is away, and events to pods' owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import time
from collections.abc import Iterable

from hypervisor.config.settings import Settings
from hypervisor.errors import KubeError
from hypervisor.k8s.access import Access, api_server
from hypervisor.k8s.client import Client
from hypervisor.k8s.event_recorder import PodEvents, Subject
from hypervisor.k8s.watch import Gone, Listed, Put, Watch
from hypervisor.metrics.observations import Key, TenantObservation
from hypervisor.metrics.snapshot import KubeView
from hypervisor.model import Origin, PodRef, TenantName
from hypervisor.node.events import note
from hypervisor.node.node import Node
from hypervisor.node.registry import Tenant
from hypervisor.pods.pod import Pod
from hypervisor.pods.tenants import PodTenants
from limiter.units import show_bytes

logger = logging.getLogger(__name__)
PODS = "/api/v1/pods"
PATIENCE_S = 2.0
"""For how long the watch may be down before the kubelet is asked."""
KUBELET_PERIOD_S = 5.0
SOONEST_S = 0.5
"""The kubelet is asked no more often than that, however many processes wait for their pod."""


class PodController:
    """The daemon's link to its cluster. Raises ConfigError if it cannot be set up."""

    def __init__(self, node: Node, settings: Settings) -> None:
        name = settings.node_name or platform.node()
        self._node = node
        api = api_server(settings.kube_api, settings.kube_token_file, settings.kube_ca_file)
        self._api = Client(api)
        self._kubelet: Client | None = None
        if settings.kubelet_url:
            ca_file = settings.kubelet_ca_file or api.ca_file
            access = Access(settings.kubelet_url.rstrip("/"), api.token_file, ca_file, name)
            self._kubelet = Client(access)
        self._events = PodEvents(self._api, component="gpulimit", host=name)
        self._watch = Watch(self._api, PODS, field_selector=f"spec.nodeName={name}")
        self._wanted = asyncio.Event()
        self._is_known = False
        self._is_fallback = False
        self._kubelet_trouble = ""
        self._doubted_at_s = -KUBELET_PERIOD_S
        """Time at which the kubelet last knew a pod that the watch had not named."""
        self._refused: dict[Key, int] = {}
        """Refusals of memory by tenant and card, at the last look."""
        self.cluster = PodTenants(node, post_event=self._post_event, wanted=self._wanted.set)

    def _post_event(self, pod: Pod, reason: str, message: str) -> None:
        level = logging.INFO if reason == "QuotaChanged" else logging.WARNING
        note(self._node.events, reason, f"{pod.title}: {message}", tenant=f"pod-{pod.uid}", level=level)
        self._events.post(Subject(pod.object_uid, pod.namespace, pod.name), reason, message)

    async def run(self) -> None:
        """Follow for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="pods")
                group.create_task(self._events.run(), name="pod events")
                if self._kubelet is not None:
                    group.create_task(self._fall_back(self._kubelet), name="kubelet")
        finally:
            await self._api.close()
            if self._kubelet is not None:
                await self._kubelet.close()

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Listed(items):
                        self.cluster.listed(items, is_whole=True)
                        self._is_known, self._is_fallback = True, False
                    case Put(item):
                        self.cluster.put(item)
                    case Gone(item):
                        self.cluster.removed(item)

    async def _fall_back(self, kubelet: Client) -> None:
        """Ask the kubelet while the watch is down, and at once when a process comes from an unknown pod."""
        asked_at_s = -KUBELET_PERIOD_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOONEST_S):  # not wait_for, which can lose a cancellation
                    await self._wanted.wait()
            is_due = self._watch_is_down() and time.monotonic() - asked_at_s >= KUBELET_PERIOD_S
            if self._wanted.is_set() or is_due:
                self._wanted.clear()
                asked_at_s = time.monotonic()
                await self._ask(kubelet)
                await asyncio.sleep(SOONEST_S)

    def _watch_is_down(self) -> bool:
        return not self._watch.is_up and time.monotonic() - self._watch.heard_at_s > PATIENCE_S

    async def _ask(self, kubelet: Client) -> None:
        try:
            listing = await kubelet.list("/pods")
        except KubeError as error:
            self._kubelet_trouble = str(error)
            return
        self._kubelet_trouble = ""
        if not self._watch_is_down():
            # The watch is the newer word, but for what only the kubelet knows at once.
            may_doubt = time.monotonic() - self._doubted_at_s >= KUBELET_PERIOD_S
            if self.cluster.learn(listing.items, is_trusted=may_doubt):
                self._doubted_at_s = time.monotonic()
                self._watch.start_over()
            return
        # One that has just started without an API server knows no pods: that one is missing says nothing.
        self.cluster.listed(listing.items, is_whole=False)
        self._is_known = self._is_fallback = True
        # This may be older than what the watch said last: when it comes back, it begins with a list.
        self._watch.start_over()

    def on_collected(self, looks: Iterable[TenantObservation]) -> None:
        """Tell the owners of pods whose processes were refused memory since the last look."""
        before, self._refused = self._refused, {}
        for look in looks:
            if look.books is None:
                continue
            self._refused[look.key] = look.books.refused
            tenant = self._node.registry.tenants.get(TenantName(look.who.tenant))
            pod = self.cluster.pods.get(tenant.pod_uid or "") if tenant is not None else None
            if pod is not None and look.books.refused > before.get(look.key, look.books.refused):
                quota = show_bytes(look.memory_quota_bytes)
                text = f"asked for more than its {quota} of memory on GPU {look.gpu.index}, and was refused"
                self._post_event(pod, "MemoryRefused", text)

    def sweep(self) -> None:
        """Try again what did not fit."""
        self.cluster.sweep()

    def resolve_pod(self, origin: Origin) -> PodRef | None:
        """Return the pod that a process runs in; None: it is in none. Raises Refused."""
        return self.cluster.resolve_pod(origin)

    def on_adopted(self, tenant: Tenant) -> None:
        """Give a tenant that an earlier daemon had what its pod says now."""
        self.cluster.on_adopted(tenant)

    def known_pods(self) -> Iterable[Pod]:
        """Return the node's pods."""
        return self.cluster.pods

    def pod_of(self, tenant: Tenant) -> PodRef | None:
        """Return the pod of a tenant, by the cluster's names; None: it is no pod's, or that is not known."""
        return self.cluster.pod_of(tenant)

    def view(self) -> KubeView | None:
        """Return how it goes, for metrics."""
        return KubeView(
            is_up=self._watch.is_up,
            is_fallback=self._is_fallback and not self._watch.is_up,
            restarts=self._watch.restarts,
            pods=len(self.cluster.pods),
            invalid=tuple((pod.namespace, pod.name) for pod in self.cluster.invalid()),
            unreadable=self.cluster.unreadable,
            events=dict(self._events.counts),
        )

    def reasons_not_ready(self) -> list[str]:
        """Return what keeps pods' processes from being taken in."""
        if self._is_known:
            return []
        troubles = [f"API server: {self._watch.trouble}"]
        if self._kubelet_trouble:
            troubles.append(f"kubelet: {self._kubelet_trouble}")
        return [f"the node's pods are not known: {'; '.join(troubles)}"]
