# SPDX-License-Identifier: Apache-2.0
"""Applies NVML's answers to the node's GPUs, tenants and quotas. Event loop only."""

from __future__ import annotations

from collections.abc import Callable

from hypervisor.model import GpuSample
from hypervisor.node.node import Node
from hypervisor.node.registry import Tenant


class GpuUpdates:
    """`on_adopted` is called with each tenant of an earlier daemon that is adopted once GPUs are known."""

    def __init__(self, node: Node, on_adopted: Callable[[Tenant], None]) -> None:
        self._node = node
        self._on_adopted = on_adopted

    def on_nvml_sample(self, samples: tuple[GpuSample, ...]) -> None:
        """Update everything that depends on the node's GPUs."""
        node, before = self._node, self._node.inventory.samples
        if any(s.memory_used_bytes < b.memory_used_bytes for s in samples if (b := before.get(s.gpu.uuid))):
            node.tenant_segments.memory_freed()
        in_use = {gpu for tenant in node.registry.tenants.values() for gpu in tenant.gpus}
        if node.inventory.update(samples, in_use=in_use):
            node.registry.gpus = {gpu.uuid: gpu for gpu in node.inventory.gpus}
            node.tenant_segments.gpus = list(node.inventory.gpus)
            for tenant in node.recovery.adopt():
                self._on_adopted(tenant)
            node.tenant_segments.publish(node.registry.tenants.values())
        node.inventory.publish(node.registry.tenants_by_gpu())
