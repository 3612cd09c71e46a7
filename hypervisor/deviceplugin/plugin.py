# SPDX-License-Identifier: Apache-2.0
"""The daemon's device plugin: its view of the node, and the pods' slices that it reports to the node.

It offers nothing before the daemon can enforce limits. A pod's process is not registered until the kubelet or
its checkpoint reports the pod's slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

from hypervisor.config.settings import Config
from hypervisor.deviceplugin import assignments as pod_devices
from hypervisor.deviceplugin import slices
from hypervisor.deviceplugin.allocation import ContainerAllocator
from hypervisor.deviceplugin.checkpoint import Allocations
from hypervisor.deviceplugin.checkpoint_file import CheckpointFile
from hypervisor.deviceplugin.pod_resources import PodResources
from hypervisor.deviceplugin.registration import PluginRegistration
from hypervisor.deviceplugin.service import Service
from hypervisor.deviceplugin.slices import Placement
from hypervisor.errors import Refused
from hypervisor.metrics.snapshot import ComponentStatus, PluginView, SlicesView
from hypervisor.model import Gpu, GpuUuid, Origin, TenantName
from hypervisor.node.events import record_event
from hypervisor.node.node import Node
from hypervisor.nvml.client import Nvml
from hypervisor.pods.pod import Pod
from hypervisor.pods.tenants import tenant_of
from limiter.errors import GpulimitError
from limiter.quota import Quota

logger = logging.getLogger(__name__)
FIRST_LOOK_S = 0.1
SWEEP_S = 1.0
CLEAN_UP_EVERY = 3600
"""Sweeps between two searches for builds of the library that no container uses any more."""


class DevicePlugin:
    """Offers the node's cards to the kubelet."""

    def __init__(self, told: Config, node: Node, nvml: Nvml, known_pods: Callable[[], Iterable[Pod]]) -> None:
        settings = told.settings
        folder = Path(settings.kubelet_dir) / "device-plugins"
        self._node = node
        self._nvml = nvml
        self._allocator = ContainerAllocator(settings, is_simulated=told.is_simulated)
        self._checkpoint = CheckpointFile(folder, settings.resource_name)
        self._pod_resources = PodResources(
            Path(settings.kubelet_dir), settings.resource_name, self._note, known_pods
        )
        self._assignments: Allocations = {}
        """Known devices of pods."""
        self._per_gpu = settings.slices_per_gpu
        self._service = Service(
            self,
            self._allocator,
            self._note,
            per_gpu=settings.slices_per_gpu,
            placement=cast(Placement, settings.slice_placement),
        )
        self._kubelet = PluginRegistration(
            self._service, self._note, folder=folder, resource=settings.resource_name
        )
        self._ready = asyncio.Event()

    def _note(self, kind: str, text: str, level: int) -> None:
        record_event(self._node.events, kind, text, level=level)

    # ---- what the plugin looks at ----

    def gpu_health(self) -> dict[GpuUuid, bool]:
        """Return for each card if it answers well."""
        is_fresh = self._nvml.is_fresh()
        samples = self._node.inventory.samples
        # Cards in MIG mode and MIG devices are offered by NVIDIA's plugin, which knows their device files.
        whole = {g: s for g, s in samples.items() if s.gpu.mig is None and not (s.mig and s.mig.is_enabled)}
        return {gpu: is_fresh and not one.error and not one.is_lost for gpu, one in whole.items()}

    def gpu(self, uuid: GpuUuid) -> Gpu | None:
        sample = self._node.inventory.samples.get(uuid)
        return sample.gpu if sample is not None else None

    def reasons_not_ready(self) -> list[str]:
        """Return the reasons that limits cannot be enforced."""
        return [*self._node.reasons_not_ready(), *filter(None, [self._trouble()])]

    def _trouble(self) -> str:
        """Return the reason that the pods' slices are unknown, or ""."""
        return "" if self._pod_resources.is_up else self._checkpoint.trouble

    # ---- what the node learns ----

    def before_register(self, origin: Origin) -> None:
        """Learn a pod's devices before its process is registered. Raises Refused."""
        if origin.pod_uid is None:
            return
        self._update_assignments()
        trouble = self._checkpoint.trouble
        if trouble and not self._pod_resources.knows(origin.pod_uid):
            self._pod_resources.want(origin.pod_uid)
            also = "" if self._pod_resources.is_up else f"; pod resources: {self._pod_resources.trouble}"
            raise Refused(503, f"which slices a pod has is not known: {trouble}{also}")

    def _update_assignments(self) -> None:
        self._checkpoint.refresh()
        self._assignments = pod_devices.merged(self._checkpoint.devices, self._pod_resources.told)
        before, now = self._node.registry.sources.slices, self._quotas()
        if now == before:
            return
        self._node.registry.sources.slices = now
        self._pod_resources.look()
        for name in list(self._node.registry.tenants):
            # A pod that the kubelet no longer lists keeps its devices while its processes live.
            if name in now and before.get(name) != now[name]:
                self._node.quotas.reevaluate_or_note(name)

    def _quotas(self) -> dict[TenantName, Quota]:
        """Return the quotas that pods' slices stand for, by tenant.

        A pod's quota counts the slices of all its containers, except those that have their own quota.
        """
        own, quotas = self._node.registry.sources.pods, {}
        for pod, containers in self._assignments.items():
            together: list[str] = []
            for container, devices in containers.items():
                name = tenant_of(pod, container)
                if name in own:
                    quotas[name] = self._quota(devices)
                else:
                    together += devices
            if together:
                quotas[tenant_of(pod)] = self._quota(together)
        return {name: quota for name, quota in quotas.items() if quota is not None}

    def _quota(self, devices: Sequence[str]) -> Quota | None:
        try:
            return slices.quota_of(devices, self._per_gpu)
        except ValueError as error:
            record_event(self._node.events, "slices_unknown", str(error), level=logging.ERROR)
            return None

    # ---- its life ----

    async def run(self) -> None:
        """Offer the cards until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kubelet.run(self._ready), name="device plugin: kubelet")
            group.create_task(self._sweep(), name="device plugin: sweep")
            group.create_task(self._pod_resources.run(), name="device plugin: pod resources")

    async def _sweep(self) -> None:
        sweeps = 0
        while True:
            self._update_assignments()
            if not self._ready.is_set() and not self.reasons_not_ready():
                await self._place_library()
            if self._ready.is_set() and sweeps % CLEAN_UP_EVERY == 0:
                await asyncio.to_thread(self._clean_up)
            sweeps += self._ready.is_set()
            await asyncio.sleep(SWEEP_S if self._ready.is_set() else FIRST_LOOK_S)

    async def _place_library(self) -> None:
        """Install the library, then let the plugin register with the kubelet."""
        try:
            placed = await asyncio.to_thread(self._allocator.place)
        except GpulimitError as error:
            record_event(self._node.events, "library_not_placed", str(error), level=logging.ERROR)
            self._kubelet.trouble = str(error)
            await asyncio.sleep(SWEEP_S)
            return
        logger.info("containers get %s", placed.library)
        self._ready.set()

    def _clean_up(self) -> None:
        try:
            for path in self._allocator.remove_unused(self._checkpoint.answers()):
                logger.info("removed %s, which no container has", path)
        except (OSError, ValueError, GpulimitError) as error:
            logger.warning("earlier builds of the library are kept: %s", error)

    def components(self) -> tuple[ComponentStatus, ...]:
        """Return the plugin's component status, for readiness and metrics."""
        return (ComponentStatus("device_plugin", self._kubelet.is_up, None),)

    def view(self) -> PluginView | None:
        """Return the plugin's counters, for metrics."""
        health = self._service.health
        allocated: Counter[GpuUuid] = Counter()
        for containers in self._assignments.values():
            with contextlib.suppress(ValueError):
                allocated += slices.count(device for devices in containers.values() for device in devices)
        cards = []
        for uuid, is_healthy in sorted(health.healthy.items()):
            gpu = self.gpu(uuid)
            if gpu is not None:
                offered = self._per_gpu if is_healthy else 0
                states = {
                    "offered": offered,
                    "withheld": self._per_gpu - offered,
                    "allotted": allocated[uuid],
                }
                if self._pod_resources.allocatable is not None:
                    states["allocatable"] = self._pod_resources.allocatable[uuid]
                cards.append(SlicesView(uuid, gpu.index, states, health.flaps[uuid]))
        return PluginView(
            self._kubelet.registrations,
            dict(self._service.allocations),
            tuple(cards),
            is_told=self._pod_resources.is_up,
        )
