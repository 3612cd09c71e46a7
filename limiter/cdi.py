# SPDX-License-Identifier: Apache-2.0
"""Writes container edits as a CDI specification for Docker, Podman, containerd and CRI-O. Pure.

There is a device for each card, by UUID and as gpu<index>, "all" for all cards, and "limits" for the library
without a card. "limits" is for containers that get their cards from another specification, such as NVIDIA's
`nvidia.com/gpu`.

Each device makes the runtime start a hook, which merges an image's own /etc/ld.so.preload with gpulimit's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from limiter.cards import Card
from limiter.container_edits import ContainerEdits

VERSION = "0.3.0"
"""The oldest version with all used features, so that older runtimes accept it."""
KIND = "gpulimit.io/gpu"
PRELOAD_KIND, MERGED = "gpulimit.io/preload", "merged"
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def specification(
    limits: ContainerEdits, cards: Sequence[Card], handouts: Mapping[str, ContainerEdits], *, hook: str
) -> dict[str, Any]:
    """Return the specification. `handouts` has the edits for each card by UUID, and for all cards under
    "all".

    `hook` is the node's program that merges. Raises ValueError.
    """
    devices = {"limits": ContainerEdits(limits.variables)}
    for card in cards:
        devices[card.uuid] = devices[f"gpu{card.index}"] = handouts[card.uuid]
    if cards:
        devices["all"] = handouts["all"]
    wrong = [name for name in devices if not NAME.fullmatch(name)]
    if wrong:
        raise ValueError(f"{wrong[0]!a} cannot be the name of a CDI device")
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{"name": name, "containerEdits": edits(one)} for name, one in devices.items()],
        "containerEdits": {**edits(limits), "hooks": hooks(hook)},
    }


def of_hook_alone(hook: str) -> dict[str, Any]:
    """Return a specification with only the hook; containers get everything else from the kubelet."""
    return {
        "cdiVersion": VERSION,
        "kind": PRELOAD_KIND,
        "devices": [{"name": MERGED, "containerEdits": {"hooks": hooks(hook)}}],
    }


def hooks(program: str) -> list[dict[str, Any]]:
    """Return hooks: a runtime starts the program in the container's mounts before the container starts."""
    return [
        {
            "hookName": "createContainer",
            "path": program,
            "args": [PurePosixPath(program).name],
            "env": ["PATH=/usr/bin:/bin"],  # without it, runtimes pass on their own environment
        }
    ]


def edits(one: ContainerEdits) -> dict[str, Any]:
    """Return the CDI form of container edits, without empty parts."""
    found: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in sorted(one.variables.items())],
        "deviceNodes": [{"path": node} for node in one.nodes],
        "mounts": [
            {
                "hostPath": mount.host,
                "containerPath": mount.container,
                "options": ["ro" if mount.is_read_only else "rw", "nosuid", "nodev", "rbind"],
            }
            for mount in one.mounts
        ],
    }
    return {name: value for name, value in found.items() if value}
