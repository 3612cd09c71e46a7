# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the device plugin where it is off. It needs no gRPC."""

from __future__ import annotations

from hypervisor.metrics.snapshot import ComponentStatus, PluginView
from hypervisor.model import Origin


class NoDevicePlugin:
    """Offers nothing to the kubelet. The methods are those of `DevicePlugin`."""

    async def run(self) -> None:
        """Return at once."""

    def before_register(self, _: Origin) -> None:
        """Do nothing: there are no slices."""

    def components(self) -> tuple[ComponentStatus, ...]:
        """Return no components."""
        return ()

    def view(self) -> PluginView | None:
        """Return None: there are no metrics of slices."""
        return None
