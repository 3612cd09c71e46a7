# SPDX-License-Identifier: Apache-2.0
"""Parses the kubelet's checkpoint of the devices that each pod has. Pure.

Allocate calls do not name the pod, and their order proves nothing. The kubelet writes the checkpoint before
it starts the container. It names the pod by the UID that is also in the cgroup path of the container's
processes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

Allocations = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Devices by pod UID and container."""


def allocations(text: str, resource: str) -> Allocations:
    """Return the devices of a resource by pod. Raises ValueError if the checkpoint has another format."""
    found: dict[str, dict[str, set[str]]] = {}
    for entry in entries(text):
        if entry.get("ResourceName") == resource and (devices := devices_of(entry)):
            containers = found.setdefault(text_in(entry, "PodUID"), {})
            containers.setdefault(text_in(entry, "ContainerName"), set()).update(devices)
    return {pod: {c: tuple(sorted(devices)) for c, devices in its.items()} for pod, its in found.items()}


def answers(text: str, resource: str) -> list[bytes]:
    """Return Allocate's answers for the containers that have a resource. Raises ValueError.

    The kubelet reuses an answer when it restarts the container.
    """
    raw = [entry.get("AllocResp") or "" for entry in entries(text) if entry.get("ResourceName") == resource]
    try:
        return [base64.b64decode(one) for one in raw]
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"an answer is not base64: {error}") from error


def entries(text: str) -> Iterator[Mapping[str, Any]]:
    data = json.loads(text)
    body = data.get("Data") if isinstance(data, dict) else None
    if not isinstance(body, dict) or "PodDeviceEntries" not in body:
        raise ValueError("there is no Data.PodDeviceEntries")
    listed = body["PodDeviceEntries"]
    if listed is None:  # how Go encodes an empty list
        return
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ValueError("Data.PodDeviceEntries is not a list of objects")
    yield from listed


def text_in(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"an entry has no {key}")
    return value


def devices_of(entry: Mapping[str, Any]) -> list[str]:
    """Return an entry's devices: one list, or since Kubernetes 1.20 one list per NUMA node."""
    devices: Any = entry.get("DeviceIDs")
    lists: list[Any] = list(devices.values()) if isinstance(devices, dict) else [devices]
    if not all(isinstance(one, list) and all(isinstance(d, str) for d in one) for one in lists):
        raise ValueError("an entry's DeviceIDs are neither a list nor lists by NUMA node")
    return [device for one in lists for device in one]
