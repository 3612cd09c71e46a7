# SPDX-License-Identifier: Apache-2.0
"""Follows the cluster for the daemon: watches this node's pods at the API server, lists them from the kubelet
while the API server is away, and posts Events about pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Iterable

from hypervisor.config.settings import Settings
from hypervisor.k8s.access import Access, api_server
from hypervisor.k8s.client import Client
from hypervisor.k8s.event_recorder import PodEvents, Subject
from hypervisor.k8s.watch import Gone, Listed, Put, Watch
from hypervisor.metrics.observations import Key, TenantObservation
from hypervisor.metrics.snapshot import KubeView
from hypervisor.model import Origin, PodRef, TenantName
from hypervisor.node.events import record_event
from hypervisor.node.node import Node
from hypervisor.node.registry import Tenant
from hypervisor.pods.kubelet import KubeletPods, NoKubelet
from hypervisor.pods.pod import Pod
from hypervisor.pods.tenants import PodTenants
from limiter.units import show_bytes

logger = logging.getLogger(__name__)
PODS = "/api/v1/pods"


class PodController:
    """The daemon's link to its cluster. Raises ConfigError if it cannot be set up."""

    def __init__(self, node: Node, settings: Settings) -> None:
        name = settings.node_name or platform.node()
        self._node = node
        api = api_server(settings.kube_api, settings.kube_token_file, settings.kube_ca_file)
        self._api = Client(api)
        self._events = PodEvents(self._api, component="gpulimit", host=name)
        self._watch = Watch(self._api, PODS, field_selector=f"spec.nodeName={name}")
        self._has_list = False
        """True once the watch has listed all pods."""
        self._refused: dict[Key, int] = {}
        """Refusals of memory by tenant and card, at the last collection."""
        wanted = asyncio.Event()
        self._tenants = PodTenants(node, post_event=self._post_event, wanted=wanted.set)
        self._kubelet: KubeletPods | NoKubelet = NoKubelet()
        if settings.kubelet_url:
            ca_file = settings.kubelet_ca_file or api.ca_file
            access = Access(settings.kubelet_url.rstrip("/"), api.token_file, ca_file, name)
            self._kubelet = KubeletPods(Client(access), self._watch, self._tenants, wanted)

    def _post_event(self, pod: Pod, reason: str, message: str) -> None:
        level = logging.INFO if reason == "QuotaChanged" else logging.WARNING
        record_event(
            self._node.events, reason, f"{pod.title}: {message}", tenant=f"pod-{pod.uid}", level=level
        )
        self._events.post(Subject(pod.object_uid, pod.namespace, pod.name), reason, message)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(), name="pods")
                group.create_task(self._events.run(), name="pod events")
                group.create_task(self._kubelet.run(), name="kubelet")
        finally:
            await self._api.close()
            await self._kubelet.close()

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Listed(items):
                        self._tenants.on_list(items, is_whole=True)
                        self._has_list = True
                        self._kubelet.superseded()
                    case Put(item):
                        self._tenants.on_put(item)
                    case Gone(item):
                        self._tenants.on_removed(item)

    def on_collected(self, observations: Iterable[TenantObservation]) -> None:
        """Post an Event for each pod whose processes were refused memory since the last collection."""
        before, self._refused = self._refused, {}
        for observation in observations:
            if observation.counters is None:
                continue
            key, refused = observation.key, observation.counters.refused
            self._refused[key] = refused
            tenant = self._node.registry.tenants.get(TenantName(observation.who.tenant))
            pod = self._tenants.pods.get(tenant.pod_uid or "") if tenant is not None else None
            if pod is not None and refused > before.get(key, refused):
                quota = show_bytes(observation.memory_quota_bytes)
                gpu = observation.gpu.index
                text = f"asked for more than its {quota} of memory on GPU {gpu}, and was refused"
                self._post_event(pod, "MemoryRefused", text)

    def sweep(self) -> None:
        """Retry the quotas that did not fit."""
        self._tenants.sweep()

    def resolve_pod(self, origin: Origin) -> PodRef | None:
        """Return the pod of a process; None if it is in none. Raises Refused."""
        return self._tenants.resolve_pod(origin)

    def on_adopted(self, tenant: Tenant) -> None:
        """Apply the pod's current annotations to an adopted tenant."""
        self._tenants.on_adopted(tenant)

    def known_pods(self) -> Iterable[Pod]:
        """Return the node's pods."""
        return self._tenants.pods

    def pod_of(self, tenant: Tenant) -> PodRef | None:
        """Return the cluster's names of a tenant's pod; None if it is no pod's, or if that is not known."""
        return self._tenants.pod_of(tenant)

    def view(self) -> KubeView | None:
        """Return the state of the watch, for metrics."""
        return KubeView(
            is_up=self._watch.is_up,
            is_fallback=self._kubelet.is_in_use and not self._watch.is_up,
            restarts=self._watch.restarts,
            pods=len(self._tenants.pods),
            invalid=tuple((pod.namespace, pod.name) for pod in self._tenants.invalid()),
            unreadable=self._tenants.unreadable,
            events=dict(self._events.counts),
        )

    def reasons_not_ready(self) -> list[str]:
        """Return the reasons that processes of pods cannot be registered."""
        if self._has_list or self._kubelet.is_in_use:
            return []
        troubles = [f"API server: {self._watch.trouble}"]
        if self._kubelet.trouble:
            troubles.append(f"kubelet: {self._kubelet.trouble}")
        return [f"the node's pods are not known: {'; '.join(troubles)}"]
