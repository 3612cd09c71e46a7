# SPDX-License-Identifier: Apache-2.0
"""Builds the edits that a container with given cards gets, from the daemon's options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypervisor.config.settings import Settings
from hypervisor.deviceplugin import api_v1beta1 as messages
from hypervisor.model import Gpu
from limiter import cdi, container_edits, driver_files, environment, library_store, paths
from limiter.container_edits import ContainerEdits
from limiter.library_store import Placed

NVIDIA_KIND = "nvidia.com/gpu"
SIM_VARIABLES = ("GPULIMIT_SIM_PROFILE", "GPULIMIT_SIM_SET", "GPULIMIT_SIM_FAULTS")


class ContainerAllocator:
    """Builds container edits. The first call installs the library; each later call checks it."""

    def __init__(self, settings: Settings, *, is_simulated: bool) -> None:
        self._settings = settings
        self._is_simulated = is_simulated
        self._folder = Path(settings.library_dir)
        self._merges = settings.merge_preload or (settings.hand_over == "cdi" and not is_simulated)
        """True if the container runtimes read CDI and so can run a hook."""
        self._cdi_file = Path(settings.cdi_dir) / "gpulimit-preload.json"

    def place(self) -> Placed:
        """Install the library, or check that it is there and works. Raises NotPlaced, NotInstalled."""
        placed = library_store.place(paths.library(), self._folder, self._settings.socket)
        if self._merges:
            hook = library_store.place_hook(paths.preload_hook(), self._folder)
            specification = json.dumps(cdi.of_hook_alone(str(hook)), indent=2)
            try:
                library_store.put(self._cdi_file, f"{specification}\n".encode())
            except OSError as error:
                raise library_store.NotPlaced(f"{self._cdi_file}: {error.strerror}") from error
        return placed

    def remove_unused(self, in_use: Sequence[bytes]) -> list[Path]:
        """Remove earlier builds of the library that no container uses."""
        return library_store.remove_unused(self._folder, self.place().library, in_use)

    def limits(self) -> ContainerEdits:
        """Return the edits that every container gets. Raises NotPlaced, NotInstalled."""
        placed = self.place()
        return container_edits.limits(
            library=str(placed.library),
            preload=str(placed.preload),
            daemon=str(placed.daemon),
            socket=self._settings.socket,
        )

    def of(self, cards: Sequence[Gpu]) -> ContainerEdits:
        """Return the edits for a container with these cards. Raises NotPlaced, NotInstalled, ValueError."""
        merged = ContainerEdits(cdi=(f"{cdi.PRELOAD_KIND}={cdi.MERGED}",) if self._merges else ())
        return self.limits() + self.cards(cards) + merged

    def cards(self, cards: Sequence[Gpu]) -> ContainerEdits:
        uuids = [gpu.uuid for gpu in cards]
        if self._is_simulated:
            return self._simulated(uuids)
        if self._settings.hand_over == "nvidia":
            return container_edits.by_nvidia(uuids)
        if self._settings.hand_over == "cdi":
            return container_edits.by_cdi(uuids, (NVIDIA_KIND,))
        return self._plain(cards)

    def _plain(self, cards: Sequence[Gpu]) -> ContainerEdits:
        root = Path(self._settings.driver_root)
        unknown = [gpu.uuid for gpu in cards if gpu.minor is None]
        if unknown:
            raise ValueError(f"NVML does not say which device file {unknown[0]} has")
        files = driver_files.libraries(root)
        if not files:
            raise ValueError(f"the driver's libraries are not found under {root}")
        nodes = [driver_files.card_node(gpu.minor) for gpu in cards if gpu.minor is not None]
        return container_edits.plain(nodes, files, driver_files.control_nodes(root))

    def _simulated(self, uuids: Sequence[str]) -> ContainerEdits:
        variables = dict(os.environ)
        environment.use_simulated_driver(variables)
        return container_edits.simulated(
            uuids,
            driver=str(paths.simulated_driver()),
            state=variables["GPULIMIT_SIM_STATE"],
            variables={name: variables[name] for name in SIM_VARIABLES if name in variables},
        )


def answer_of(grant: ContainerEdits) -> Any:
    """Return container edits as Allocate's answer for one container."""
    return messages.new(
        "ContainerAllocateResponse",
        envs=sorted_dict(grant.variables),
        mounts=[
            messages.new("Mount", container_path=m.container, host_path=m.host, read_only=m.is_read_only)
            for m in grant.mounts
        ],
        devices=[
            messages.new("DeviceSpec", container_path=node, host_path=node, permissions="rw")
            for node in grant.nodes
        ],
        cdi_devices=[messages.new("CDIDevice", name=name) for name in grant.cdi],
    )


def sorted_dict(values: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(values.items()))
