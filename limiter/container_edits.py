# SPDX-License-Identifier: Apache-2.0
"""Edits of a container that limit its programs, as values, for Kubernetes and for CDI. Pure.

They are its cards, the library, the preload file, the daemon's socket and a few variables. They contain
nothing of other containers, and no segments: the daemon passes those to each process over the socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

LIBRARY_IN_CONTAINER = "/usr/lib/gpulimit/libgpulimit.so"
DAEMON_IN_CONTAINER = "/usr/lib/gpulimit/daemon"
"""File in which the library first looks for the daemon's socket (csrc/daemon/address.c)."""
PRELOAD_IN_CONTAINER = "/etc/ld.so.preload"
DRIVER_IN_CONTAINER = "/usr/local/nvidia/lib64"
SIM_STATE_IN_CONTAINER = "/run/gpulimit-sim"
NOT_BY_NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Overrides the variable with which many images make NVIDIA's runtime add every card, if it is the default
runtime."""
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node, and its path in a container."""

    host: str
    container: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """Mounts, devices and variables that a container gets."""

    variables: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[str, ...] = ()
    """Device files, at the same path in the container."""
    cdi: tuple[str, ...] = ()
    """Names of CDI devices with further edits."""

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        return ContainerEdits(
            self.variables | other.variables,
            tuple(dict.fromkeys(self.mounts + other.mounts)),
            tuple(dict.fromkeys(self.nodes + other.nodes)),
            tuple(dict.fromkeys(self.cdi + other.cdi)),
        )


def limits(*, library: str, preload: str, daemon: str, socket: str) -> ContainerEdits:
    """Return the edits of every limited container. `library`, `preload` and `daemon` are the node's files.

    The socket's folder is mounted, not the socket, which a restarted daemon replaces. `daemon` makes the
    daemon mandatory: without one, a process waits and then gets no GPU, whatever its environment says. The
    variable is for gpulimit's commands in the container.
    """
    folder = str(PurePosixPath(socket).parent)
    return ContainerEdits(
        variables={"GPULIMIT_SOCKET": socket},
        mounts=(
            Mount(library, LIBRARY_IN_CONTAINER),
            Mount(preload, PRELOAD_IN_CONTAINER),
            Mount(daemon, DAEMON_IN_CONTAINER),
            Mount(folder, folder),
        ),
    )


def by_nvidia(uuids: Iterable[str]) -> ContainerEdits:
    """Return edits that make NVIDIA's container runtime add cards and driver."""
    return ContainerEdits(variables={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)})


def by_cdi(uuids: Iterable[str], kinds: Iterable[str]) -> ContainerEdits:
    """Return the names of cards as CDI devices of some kinds, "nvidia.com/gpu"."""
    named = list(uuids)
    return ContainerEdits(NOT_BY_NVIDIA, cdi=tuple(f"{kind}={uuid}" for kind in kinds for uuid in named))


def plain(
    cards: Iterable[str], files: Iterable[Mount], controls: Iterable[str] = CONTROL_NODES
) -> ContainerEdits:
    """Return device files and the driver's libraries themselves. `cards` are paths as /dev/nvidia0."""
    return ContainerEdits(NOT_BY_NVIDIA, tuple(files), (*cards, *controls))


def simulated(uuids: Iterable[str], *, driver: str, state: str, variables: dict[str, str]) -> ContainerEdits:
    """Return the simulated driver and its machine: `driver` is its folder, `state` its file's."""
    path = PurePosixPath(state)
    return ContainerEdits(
        variables=variables
        | {
            "LD_LIBRARY_PATH": DRIVER_IN_CONTAINER,
            "GPULIMIT_SIM_STATE": f"{SIM_STATE_IN_CONTAINER}/{path.name}",
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        },
        mounts=(
            Mount(driver, DRIVER_IN_CONTAINER),
            Mount(str(path.parent), SIM_STATE_IN_CONTAINER, is_read_only=False),
        ),
    )
