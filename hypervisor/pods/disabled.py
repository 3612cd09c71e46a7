# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the pod controller on a node without Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.metrics.observations import TenantObservation
from hypervisor.metrics.snapshot import KubeView
from hypervisor.model import Origin, PodRef
from hypervisor.node.registry import Tenant
from hypervisor.pods.pod import Pod


class NoKubernetes:
    """No process of this node is in a pod. The methods are those of `PodController`."""

    async def run(self) -> None:
        """Return at once."""

    def sweep(self) -> None:
        """Do nothing."""

    def resolve_pod(self, _: Origin) -> PodRef | None:
        """Return None: the process is in no pod."""
        return None

    def on_adopted(self, _: Tenant) -> None:
        """Do nothing."""

    def known_pods(self) -> Iterable[Pod]:
        """Return no pods."""
        return ()

    def pod_of(self, _: Tenant) -> PodRef | None:
        """Return None: the tenant is no pod's."""
        return None

    def on_collected(self, _: Iterable[TenantObservation]) -> None:
        """Do nothing."""

    def view(self) -> KubeView | None:
        """Return None: there are no metrics of a cluster."""
        return None

    def reasons_not_ready(self) -> list[str]:
        """Return no reasons."""
        return []
