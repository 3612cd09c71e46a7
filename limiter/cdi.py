# SPDX-License-Identifier: Apache-2.0
"""Handouts as a CDI specification, which Docker, Podman, containerd and CRI-O read. Pure.

A device for each card, by UUID and as gpu<index>, "all" for all, and "limits": the library without a card,
for those who take their cards from another specification, NVIDIA's `nvidia.com/gpu` say.

All of them have the runtime start a hook, which merges an /etc/ld.so.preload of the image's own with ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from limiter.cards import Card
from limiter.container_edits import ContainerEdits

VERSION = "0.3.0"
"""The oldest that has all that is used, so that older runtimes take it too."""
KIND = "gpulimit.io/gpu"
PRELOAD_KIND, MERGED = "gpulimit.io/preload", "merged"
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def specification(
    limits: ContainerEdits, cards: Sequence[Card], handouts: Mapping[str, ContainerEdits], *, hook: str
) -> dict[str, Any]:
    """Return the specification. `handouts`: what brings each card, by UUID, and under "all" all of them;
    `hook`: the node's program that merges. Raises ValueError.
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
    """Return a specification for the kubelet, from which containers get all but the hook."""
    return {
        "cdiVersion": VERSION,
        "kind": PRELOAD_KIND,
        "devices": [{"name": MERGED, "containerEdits": {"hooks": hooks(hook)}}],
    }


def hooks(program: str) -> list[dict[str, Any]]:
    """Return what has a runtime start a program in the container's mounts, before the container begins."""
    return [
        {
            "hookName": "createContainer",
            "path": program,
            "args": [PurePosixPath(program).name],
            "env": ["PATH=/usr/bin:/bin"],  # else runtimes hand on their own environment
        }
    ]


def edits(one: ContainerEdits) -> dict[str, Any]:
    """Return a handout as edits of a container; parts that it has not are left out."""
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
