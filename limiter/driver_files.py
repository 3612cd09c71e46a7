# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver's files on this node, for containers that get them from no other runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limiter.container_edits import CONTROL_NODES, DRIVER_IN_CONTAINER, Mount

LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so.*",
    "libcudadebugger.so.1",
)
"""Libraries for compute; the first two are mandatory."""
FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
    "usr/lib",
)


def libraries(root: Path = Path("/")) -> tuple[Mount, ...]:
    """Return mounts of the driver's libraries under the node's root.

    Host paths are the node's own. `root` is the path of the node's root folder in the caller's container.
    """
    for folder in FOLDERS:
        if (root / folder / LIBRARIES[0]).exists():
            return tuple(found_in(root, folder))
    return ()


def found_in(root: Path, folder: str) -> Iterator[Mount]:
    for pattern in LIBRARIES:
        for path in sorted((root / folder).glob(pattern)):
            yield Mount(f"/{folder}/{path.name}", f"{DRIVER_IN_CONTAINER}/{path.name}")


def control_nodes(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the device files that every container with a card needs."""
    return tuple(node for node in CONTROL_NODES if (root / node.lstrip("/")).exists())


def card_node(minor: int) -> str:
    """Return the device file of a card."""
    return f"/dev/nvidia{minor}"
