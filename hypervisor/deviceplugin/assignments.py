# SPDX-License-Identifier: Apache-2.0
"""Which pod has which devices, from what the kubelet answers and from its record. Pure.

Answers name pods by namespace and name, which pods have one after the other; the record names them by UID. A
name is taken for a UID only if the cluster has one pod of that name, the same before the question and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypervisor.deviceplugin.checkpoint import Allocations
from hypervisor.pods.pod import Pod

Answer = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Devices by pod, "NAMESPACE/NAME", and container."""


def names(pods: Iterable[Pod]) -> dict[str, str]:
    """Return UIDs by "NAMESPACE/NAME", without names that several pods have and pods that have ended."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        if not pod.has_ended:
            found.setdefault(pod.title, set()).add(pod.uid)
    return {title: next(iter(uids)) for title, uids in found.items() if len(uids) == 1}


def by_uid(
    answer: Answer, before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, Mapping[str, tuple[str, ...]]]:
    """Return an answer by UID. `before` and `after`: `names` when it was asked for and when it came."""
    return {
        before[title]: containers
        for title, containers in answer.items()
        if title in before and before[title] == after.get(title)
    }


def merged(record: Allocations, told: Allocations) -> Allocations:
    """Return what pods have: what was told where devices were, and the record for the rest.

    What was told may be older than the record, and lacks init containers. Devices that the record gives to
    another pod were told of one that had the same name.
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
