# SPDX-License-Identifier: Apache-2.0
"""Parses the cluster's pod objects, and keeps the pods of this node by UID and by container. Pure.

Everything in an object may be missing or wrong. If a required field is invalid, parsing raises ValueError,
and the pod is treated as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CONTAINER_ID = re.compile(r"[a-z0-9.+-]+://([0-9a-f]{64})")
STATIC_UID = re.compile(r"[0-9a-f]{32}")
CONFIG_HASH, CONFIG_MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod."""

    name: str
    ids: frozenset[str] = frozenset()
    """The runtime's ids of the current run and of the one before: 64 digits each."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Limits by resource."""
    is_init: bool = False
    """True for an init container: it ends before the next one starts, unless it is a sidecar."""
    is_sidecar: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    uid: str
    """UID in the names of its cgroups; for a static pod it differs from the API's."""
    object_uid: str
    """UID in the API."""
    namespace: str
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    """Containers in the order of the pod, init containers first."""
    has_ended: bool = False

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_of(item: Mapping[str, Any]) -> Pod:
    """Return the pod that an object describes. Raises ValueError."""
    meta, spec, status = (mapping(item.get(key)) for key in ("metadata", "spec", "status"))
    object_uid, name = text(meta.get("uid")), text(meta.get("name"))
    if not object_uid or not name:
        raise ValueError("a pod without uid or name")
    annotations = strings(meta.get("annotations"))
    return Pod(
        uid=cgroup_uid(object_uid, annotations),
        object_uid=object_uid,
        namespace=text(meta.get("namespace")) or "default",
        name=name,
        annotations=annotations,
        containers=(
            *containers_of(spec, status, "initContainers", "initContainerStatuses"),
            *containers_of(spec, status, "containers", "containerStatuses"),
        ),
        has_ended=status.get("phase") in ENDED,
    )


def cgroup_uid(object_uid: str, annotations: Mapping[str, str]) -> str:
    """Return the UID in the names of a pod's cgroups.

    For a static pod it is the hash of its file. Any user can write such an annotation, so it must have the
    form of a hash, which UIDs of other pods do not have.
    """
    hashed = annotations.get(CONFIG_MIRROR) or annotations.get(CONFIG_HASH) or ""
    return hashed if STATIC_UID.fullmatch(hashed) else object_uid


def containers_of(
    spec: Mapping[str, Any], status: Mapping[str, Any], key: str, status_key: str
) -> Iterable[Container]:
    known = {text(s.get("name")): s for s in mappings(status.get(status_key))}
    for one in mappings(spec.get(key)):
        name = text(one.get("name"))
        if name:
            yield Container(
                name=name,
                ids=frozenset(ids_of(known.get(name, {}))),
                limits=strings(mapping(one.get("resources")).get("limits")),
                is_init=key == "initContainers",
                is_sidecar=key == "initContainers" and one.get("restartPolicy") == "Always",
            )


def ids_of(status: Mapping[str, Any]) -> Iterable[str]:
    """Yield the ids of a container's present and former runs."""
    states = (mapping(status.get(key)) for key in ("state", "lastState"))
    ended = (mapping(state.get("terminated")).get("containerID") for state in states)
    for said in (status.get("containerID"), *ended):
        match = CONTAINER_ID.fullmatch(text(said))
        if match is not None:
            yield match[1]


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> Iterable[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def strings(value: object) -> dict[str, str]:
    """Return a mapping's strings; numbers, which YAML makes of unquoted resources, become text."""
    return {
        key: str(one)
        for key, one in mapping(value).items()
        if isinstance(one, str | int | float) and not isinstance(one, bool)
    }


def is_same(known: Pod | None, pod: Pod) -> bool:
    """True if a pod may be stored under its UID; False if another pod has the UID.

    A user could give a pod the hash of a static pod, but not its name.
    """
    return known is None or (known.namespace, known.name) == (pod.namespace, pod.name)


@dataclass(frozen=True, slots=True)
class PodChanges:
    """Pods that an update changed."""

    put: tuple[Pod, ...] = ()
    """New and changed pods."""
    gone: tuple[Pod, ...] = ()
    """Deleted pods, in their last state."""


class Pods:
    """The known pods of the node."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._containers: dict[str, tuple[str, str]] = {}
        """(pod's UID, container's name) by container id."""

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(tuple(self._pods.values()))

    def get(self, uid: str) -> Pod | None:
        """Return the pod whose cgroups have a UID."""
        return self._pods.get(uid)

    def container(self, pod_uid: str, container_id: str | None) -> str | None:
        """Return the name of a pod's container; None if it is not known, or belongs to another pod."""
        owner, name = self._containers.get(container_id or "", ("", ""))
        return name if owner == pod_uid and name else None

    def replace(self, pods: Iterable[Pod], *, is_whole: bool = True) -> PodChanges:
        """Apply a list of pods. `is_whole`: pods that are missing in it are gone."""
        fresh: dict[str, Pod] = {}
        for pod in pods:
            if is_same(fresh.get(pod.uid) or (None if is_whole else self._pods.get(pod.uid)), pod):
                fresh[pod.uid] = pod
        gone = [p for uid, p in self._pods.items() if uid not in fresh] if is_whole else []
        put = [pod for uid, pod in fresh.items() if self._pods.get(uid) != pod]
        for pod in gone:
            self._drop(pod)
        for pod in put:
            self._keep(pod)
        return PodChanges(tuple(put), tuple(gone))

    def put(self, pod: Pod) -> PodChanges:
        """Add or update one pod."""
        return self.replace([pod], is_whole=False)

    def remove(self, pod: Pod) -> PodChanges:
        """Forget a deleted pod, but not another one that has replaced it."""
        known = self._pods.get(pod.uid)
        if known is None or known.object_uid != pod.object_uid:
            return PodChanges()
        self._drop(known)
        return PodChanges(gone=(known,))

    def _keep(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if known is not None:
            self._drop(known)
        self._pods[pod.uid] = pod
        for container in pod.containers:
            for container_id in container.ids:
                self._containers.setdefault(container_id, (pod.uid, container.name))

    def _drop(self, pod: Pod) -> None:
        del self._pods[pod.uid]
        for container in pod.containers:
            for container_id in container.ids:
                if self._containers.get(container_id) == (pod.uid, container.name):
                    del self._containers[container_id]
