# SPDX-License-Identifier: Apache-2.0
"""Computes the patches, warnings or refusal for a pod before the API server stores it. Pure.

The webhook only does what the node cannot do later. It requests slices if annotations name a quota and no
container requests a card. It sets LD_PRELOAD if an image must keep its own. It refuses pods that cannot be
limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypervisor.pods.pod import Pod, mapping, mappings, pod_of, strings, text
from hypervisor.pods.quota import PREFIX, parse_quota, quotas_of, read_own
from hypervisor.webhook.environment import add, preload_patches, variable_patches
from limiter.quota import Quota
from limiter.units import PERCENT

LD_PRELOAD = f"{PREFIX}ld-preload"
"""Annotation: the image's own preloaded libraries, comma-separated; gpulimit's is then added to LD_PRELOAD
too."""
GPU_PREFIXES = ("nvidia.com/", "amd.com/", "gpu.intel.com/")
EPHEMERAL = "ephemeralContainers"
THOUSANDTHS = 1000


@dataclass(frozen=True, slots=True)
class Rules:
    """The webhook's settings for pods."""

    resource: str = "gpulimit.io/gpu"
    per_gpu: int = 10
    card_bytes: int | None = None
    """Memory of one card of the cluster, to convert quotas in bytes to slices; None if not known."""
    may_be_privileged: bool = False
    """True to admit pods with slices whose containers see every card of the node."""
    hides_others: bool = False
    """True to hide all cards from containers that request none, whatever their image's environment says."""


@dataclass(slots=True)
class AdmissionResult:
    """Patches and warnings for a pod, or its refusal."""

    patches: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusal: str = ""


def review(item: Mapping[str, Any], rules: Rules) -> AdmissionResult:
    """Return the admission result for a pod to be created. Raises ValueError if the object is not a pod."""
    # A pod from a template has no name and no UID yet.
    meta = {"uid": "new", "name": "new", **{k: v for k, v in mapping(item.get("metadata")).items() if v}}
    pod = pod_of({**item, "metadata": meta})
    verdict = AdmissionResult()
    problems = quotas_of(pod).problems
    if problems:
        verdict.refusal = str(problems[0])
        return verdict
    spec = mapping(item.get("spec"))
    containers = list(containers_in(spec))
    wanted = slices_of(pod, containers, rules, verdict)
    has_slices = {at for at, one in containers if asks_for(one, rules.resource)} | set(wanted)
    if has_slices and not rules.may_be_privileged:
        verdict.refusal = forbidden_access(spec)
    for at, one in containers:
        if at in wanted:
            verdict.patches += resource_patches(at, one, rules.resource, wanted[at])
        if at in has_slices and LD_PRELOAD in pod.annotations:
            libraries = [part.strip() for part in pod.annotations[LD_PRELOAD].split(",") if part.strip()]
            try:
                verdict.patches += preload_patches(at, one, libraries)
            except ValueError as error:
                verdict.refusal = str(error)
                return verdict
        if rules.hides_others and at not in has_slices and not asks_for_any(one):
            verdict.patches += variable_patches(at, one, "NVIDIA_VISIBLE_DEVICES", "void")
    return verdict


def judge_debugging(item: Mapping[str, Any], before: Mapping[str, Any], rules: Rules) -> AdmissionResult:
    """Return the admission result for ephemeral containers; `before` is the pod without them."""
    verdict = AdmissionResult()
    spec = mapping(item.get("spec"))
    known = {text(one.get("name")) for one in mappings(mapping(before.get("spec")).get(EPHEMERAL))}
    has_slices = any(asks_for(one, rules.resource) for _, one in containers_in(spec))
    for at, one in containers_in(spec, (EPHEMERAL,)):
        if text(one.get("name")) in known:
            continue  # the API server forbids changes to an existing ephemeral container
        if has_slices and not rules.may_be_privileged:
            verdict.refusal = verdict.refusal or privilege_of(one)
        if rules.hides_others:
            verdict.patches += variable_patches(at, one, "NVIDIA_VISIBLE_DEVICES", "void")
    return verdict


def containers_in(
    spec: Mapping[str, Any], kinds: tuple[str, ...] = ("initContainers", "containers")
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield containers with their place in the spec. Sidecars are init containers that keep running."""
    for key in kinds:
        for number, one in enumerate(mappings(spec.get(key))):
            yield f"/spec/{key}/{number}", one


def limits_of(container: Mapping[str, Any]) -> dict[str, str]:
    resources = mapping(container.get("resources"))
    return strings(resources.get("requests")) | strings(resources.get("limits"))


def asks_for(container: Mapping[str, Any], resource: str) -> bool:
    return limits_of(container).get(resource, "0") != "0"


def asks_for_any(container: Mapping[str, Any]) -> bool:
    return any(name.startswith(GPU_PREFIXES) for name in limits_of(container))


# ---- slices ----


def slices_of(
    pod: Pod, containers: list[tuple[str, Mapping[str, Any]]], rules: Rules, verdict: AdmissionResult
) -> dict[str, int]:
    """Return the number of slices to request, by a container's place.

    Empty if any container requests slices itself: the author has decided. A quota for the whole pod belongs
    to its first container: the node gives the other containers nothing.
    """
    if any(asks_for(one, rules.resource) or asks_for_any(one) for _, one in containers):
        return {}
    said = read_own(pod)
    places = {text(one.get("name")): at for at, one in containers}
    wanted: dict[str, int] = {}
    for name, words in said.containers.items():
        quota = parse_quota({**said.pod, **words}, [])
        if quota is not None and quota.has_limits and name in places:
            wanted[places[name]] = count(quota, rules, verdict)
    whole = parse_quota(said.pod, [])
    first = next((at for at, _ in containers if at.startswith("/spec/containers/")), None)
    if whole is not None and whole.has_limits and not wanted and first is not None:
        wanted[first] = count(whole, rules, verdict)
    return wanted


def count(quota: Quota, rules: Rules, verdict: AdmissionResult) -> int:
    """Return the number of slices that cover a quota's memory and its request."""
    percent = float(quota.request_percent or 0)
    for rule in quota.memory:
        if rule.is_share:
            percent = max(percent, rule.amount / THOUSANDTHS)
        elif rules.card_bytes:
            percent = max(percent, rule.amount / rules.card_bytes * PERCENT)
        else:
            warning = (
                f"a quota in bytes counts as one slice: ask for {rules.resource} yourself, or in percent"
            )
            verdict.warnings.append(warning)
    return max(1, min(rules.per_gpu, math.ceil(round(percent * rules.per_gpu / PERCENT, 6))))


# ---- what cannot be limited ----


def forbidden_access(spec: Mapping[str, Any]) -> str:
    """Return the setting of a pod that gives access to cards beyond its own; "" if there is none."""
    for _, one in containers_in(spec, ("initContainers", "containers", EPHEMERAL)):
        if privilege := privilege_of(one):
            return privilege
    for volume in mappings(spec.get("volumes")):
        path = text(mapping(volume.get("hostPath")).get("path")).rstrip("/") or "/"
        if "hostPath" in volume and (path == "/" or f"{path}/".startswith(("/dev/", "/run/gpulimit/"))):
            return f"volume {text(volume.get('name'))} brings {path} of the node, and with it cards"
    if spec.get("hostPID") is True:
        return "hostPID reaches the daemon and other pods' processes"
    return ""


def privilege_of(container: Mapping[str, Any]) -> str:
    if mapping(container.get("securityContext")).get("privileged") is not True:
        return ""
    return f"container {text(container.get('name'))} is privileged and would see every card of the node"


# ---- patches ----


def resource_patches(
    at: str, container: Mapping[str, Any], resource: str, number: int
) -> list[dict[str, Any]]:
    resources = container.get("resources")
    found: list[dict[str, Any]] = []
    if not isinstance(resources, dict):
        found.append(add(f"{at}/resources", {}))
        resources = {}
    for kind in ("limits", "requests"):
        if not isinstance(resources.get(kind), dict):
            found.append(add(f"{at}/resources/{kind}", {}))
        found.append(add(f"{at}/resources/{kind}/{escaped(resource)}", str(number)))
    return found


def escaped(key: str) -> str:
    """Return a key escaped for JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")
