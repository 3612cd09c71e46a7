# SPDX-License-Identifier: Apache-2.0
"""Maps pods to their devices, from the kubelet's answers and its checkpoint. Pure.

Answers name pods by namespace and name, which a later pod may reuse. The checkpoint names pods by UID. A name
maps to a UID only if exactly one pod in the cluster has it, the same one before and after the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypervisor.deviceplugin.checkpoint import Allocations
from hypervisor.pods.pod import Pod

Answer = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Devices by pod ("NAMESPACE/NAME") and container."""


def names(pods: Iterable[Pod]) -> dict[str, str]:
    """Return UIDs by "NAMESPACE/NAME", without ambiguous names and without ended pods."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        if not pod.has_ended:
            found.setdefault(pod.title, set()).add(pod.uid)
    return {title: next(iter(uids)) for title, uids in found.items() if len(uids) == 1}


def by_uid(
    answer: Answer, before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, Mapping[str, tuple[str, ...]]]:
    """Return an answer by UID. `before` and `after` are `names` at the request and at the answer."""
    return {
        before[title]: containers
        for title, containers in answer.items()
        if title in before and before[title] == after.get(title)
    }


def merged(record: Allocations, told: Allocations) -> Allocations:
    """Return the devices of pods: the kubelet's answer where it lists devices, the checkpoint elsewhere.

    The answer may be older than the checkpoint, and lacks init containers. If the checkpoint gives a device
    to another pod, the answer meant an earlier pod of the same name and is not used.
    """
    owner = {device: pod for pod, its in record.items() for devices in its.values() for device in devices}
    found = {pod: dict(its) for pod, its in record.items()}
    for pod, containers in told.items():
        given = {name: devices for name, devices in containers.items() if devices}
        if any(owner.get(device, pod) != pod for devices in given.values() for device in devices):
            continue
        if given:
            found.setdefault(pod, {}).update(given)
    return found
