# SPDX-License-Identifier: Apache-2.0
"""The quotas that a pod names: by annotations of ours, or by the words of other systems. Pure.

The first dialect of which a pod says anything holds alone, so that a pod that was moved over by adding our
annotations is not also held to what is left of the old ones:

1. `gpulimit.io/memory`, `/compute`, `/request`, `/weight`, `/priority`, `/memory-wait`, `/gang` for the whole
   pod, and `gpulimit.io/CONTAINER.memory` and so on for one container, which then has a quota of its own;
   what it does not name is as for the pod. Annotations that name a gang alone are added to another dialect's.
2. nvshare's fork: `nvshare.com/gpu-memory-limit`, `/gpu-core-limit`, or the same under `xpushare.com`.
3. HAMi: the resources `nvidia.com/gpumem`, `gpumem-percentage`, `gpucores`, `priority` of each container.

An empty value says nothing. A value that cannot be read, a container that is not there and a field that looks
misspelt are troubles: a pod with troubles is never taken for one without a quota.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hypervisor.pods.pod import Container, Pod
from hypervisor.pods.quantity import compute_words, memory_words, quantity, size_bytes
from limiter import quota
from limiter.errors import QuotaError
from limiter.quota import Quota
from limiter.units import PERCENT

PREFIX = "gpulimit.io/"
OURS = "gpulimit.io"
"""Name of our own dialect."""
FIELDS: Mapping[str, Callable[[str], str]] = {
    "memory": memory_words,
    "compute": compute_words,
    "request": compute_words,
    "weight": str.strip,
    "priority": lambda text: text.strip().lower(),
    "memory-wait": str.strip,
    "gang": str.strip,
}
VARIABLES = {name: f"GPULIMIT_{name.upper().replace('-', '_')}" for name in FIELDS}
ALIKE, VERY_ALIKE = 0.6, 0.85
"""Similarity to a field's name (as difflib counts) from which a key is taken for a misspelling of it."""
NVSHARE = ("nvshare.com/", "xpushare.com/")
HAMI = "nvidia.com/"
HAMI_RESOURCES: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("memory", "gpumem", lambda mebibytes: f"{mebibytes}MiB" if mebibytes else ""),
    ("memory", "gpumem-percentage", lambda percent: f"{percent}%" if 0 < percent < PERCENT else ""),
    ("compute", "gpucores", lambda percent: f"{percent}" if 0 < percent < PERCENT else ""),
    ("priority", "priority", lambda number: "low" if number else "high"),
)
MB, MIB = 10**6, 1 << 20


@dataclass(frozen=True, slots=True)
class QuotaProblem:
    """Something that a pod says and that cannot be followed."""

    place: str
    """The annotation or resource."""
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PodQuotas:
    """Quotas that a pod names."""

    pod: Quota | None = None
    """For all its containers together, but those in `containers`."""
    containers: Mapping[str, Quota] = field(default_factory=dict)
    """Containers with a quota of their own."""
    troubles: tuple[QuotaProblem, ...] = ()
    dialect: str = ""
    """Project whose annotations these are; empty: it has none."""


@dataclass(frozen=True, slots=True)
class ParsedQuota:
    """Words of one dialect: field to (value in a quota's words, where it was said)."""

    pod: Mapping[str, tuple[str, str]]
    containers: Mapping[str, Mapping[str, tuple[str, str]]]
    troubles: tuple[QuotaProblem, ...] = ()

    @property
    def is_something(self) -> bool:
        return bool(self.pod or self.containers or self.troubles)

    @property
    def is_gang_alone(self) -> bool:
        """True if a gang is named and no limit."""
        fields = {*self.pod, *(name for words in self.containers.values() for name in words)}
        return fields == {"gang"} and not self.troubles


def quotas_of(pod: Pod) -> PodQuotas:
    """Return the quotas that a pod names."""
    ours = own(pod)
    if not ours.is_something or ours.is_gang_alone:
        for dialect, read in (("nvshare", nvshare), ("HAMi", hami)):
            said = read(pod)
            if said.is_something:
                return as_quotas(joined(said, ours), dialect)
    return as_quotas(ours, OURS) if ours.is_something else PodQuotas()


def joined(said: ParsedQuota, more: ParsedQuota) -> ParsedQuota:
    """Return the words of one dialect with those of another."""
    names = (*said.containers, *(name for name in more.containers if name not in said.containers))
    containers = {name: {**said.containers.get(name, {}), **more.containers.get(name, {})} for name in names}
    return ParsedQuota({**said.pod, **more.pod}, containers, (*said.troubles, *more.troubles))


def as_quotas(said: ParsedQuota, dialect: str) -> PodQuotas:
    troubles = list(said.troubles)
    whole = quota_in(said.pod, troubles)
    containers = {}
    for name, words in said.containers.items():
        found = quota_in({**said.pod, **words}, troubles)
        if found is not None:
            containers[name] = found
    if (whole is None or not whole.has_limits) and len(containers) == 1:
        # One container's alone: the others have no quota that theirs could be told from.
        whole, containers = next(iter(containers.values())), {}
    return PodQuotas(whole, containers, tuple(dict.fromkeys(troubles)), dialect)


def quota_in(words: Mapping[str, tuple[str, str]], troubles: list[QuotaProblem]) -> Quota | None:
    """Return the quota that words give; None: they say nothing, or cannot be read."""
    variables = {VARIABLES[name]: value for name, (value, _) in words.items()}
    places = {VARIABLES[name]: place for name, (_, place) in words.items()}
    try:
        return quota.read(variables, flags=places) if variables else None
    except QuotaError as error:
        troubles.append(QuotaProblem(error.variable, str(error).partition(": ")[2]))
        return None


# ---- our own annotations ----


def own(pod: Pod) -> ParsedQuota:
    """Read `gpulimit.io/…`."""
    of_pod: dict[str, tuple[str, str]] = {}
    of_containers: dict[str, dict[str, tuple[str, str]]] = {}
    troubles: list[QuotaProblem] = []
    names = {container.name for container in pod.containers}
    for place, value in pod.annotations.items():
        if not place.startswith(PREFIX) or not value.strip():
            continue
        container, dot, name = place.removeprefix(PREFIX).rpartition(".")
        if name not in FIELDS:
            if (not dot or container in names) and (meant := meant_by(name)):
                troubles.append(
                    QuotaProblem(place, f"is no annotation of a quota; {PREFIX}{container}{dot}{meant} is")
                )
            continue
        if dot and container not in names:
            troubles.append(QuotaProblem(place, f"the pod has no container {container!a}"))
            continue
        into = of_containers.setdefault(container, {}) if dot else of_pod
        take(into, name, value, place, troubles)
    return ParsedQuota(
        of_pod, {name: words for name, words in of_containers.items() if words}, tuple(troubles)
    )


def meant_by(name: str) -> str:
    """Return the field that a key is a misspelling of."""
    low = name.lower()
    near = difflib.get_close_matches(low, FIELDS, 1, VERY_ALIKE)
    # "memory-limit" is like "memory-wait", and means "memory".
    with_more = [field for field in FIELDS if low.startswith(f"{field}-")]
    return next(iter(near or with_more or difflib.get_close_matches(low, FIELDS, 1, ALIKE)), "")


def take(
    into: dict[str, tuple[str, str]], name: str, value: str, place: str, troubles: list[QuotaProblem]
) -> None:
    """Put a value in a quota's words."""
    try:
        into[name] = FIELDS[name](value), place
    except ValueError as error:
        troubles.append(QuotaProblem(place, str(error)))


# ---- other systems' words ----


def nvshare(pod: Pod) -> ParsedQuota:
    """Read the annotations of nvshare's fork."""
    of_pod: dict[str, tuple[str, str]] = {}
    troubles: list[QuotaProblem] = []
    for prefix in NVSHARE:
        memory, core = (
            pod.annotations.get(f"{prefix}{key}", "") for key in ("gpu-memory-limit", "gpu-core-limit")
        )
        try:
            if memory.strip() and "memory" not in of_pod:
                of_pod["memory"] = f"{megabytes(memory)}B", f"{prefix}gpu-memory-limit"
        except ValueError as error:
            troubles.append(QuotaProblem(f"{prefix}gpu-memory-limit", str(error)))
        if core.strip() and "compute" not in of_pod:
            of_pod["compute"] = core.strip(), f"{prefix}gpu-core-limit"
    return ParsedQuota(of_pod, {}, tuple(troubles))


def megabytes(text: str) -> int:
    """Return bytes; a small number without a unit is in MB, as the fork documents."""
    plain = text.strip()
    is_number = plain.isascii() and plain.isdecimal()
    return int(plain) * MB if is_number and int(plain) < MIB else size_bytes(plain)


def hami(pod: Pod) -> ParsedQuota:
    """Read HAMi's resources; 0 and, of percentages, 100 and more are no limit there."""
    of_containers: dict[str, dict[str, tuple[str, str]]] = {}
    troubles: list[QuotaProblem] = []
    for container in pod.containers:
        words: dict[str, tuple[str, str]] = {}
        for name, resource, form in HAMI_RESOURCES:
            place = HAMI + resource
            number = count(container.limits.get(place, ""), place, container, troubles)
            value = "" if number is None else form(number)
            if value and name not in words:
                words[name] = value, f"{container.name}: {place}"
        if words:
            of_containers[container.name] = words
    return ParsedQuota({}, of_containers, tuple(troubles))


def count(text: str, place: str, container: Container, troubles: list[QuotaProblem]) -> int | None:
    """Return a resource's whole number; None: not said."""
    if not text:
        return None
    try:
        number = quantity(text)
        if number.denominator != 1:
            raise ValueError(f"{text!a} is not a whole number")
    except ValueError as error:
        troubles.append(QuotaProblem(f"{container.name}: {place}", str(error)))
        return None
    return int(number)


# ---- what a pod takes at most ----


def peak(pod: Pod, amount: Callable[[Container], int]) -> int:
    """Return the most that a pod has of something at one time, from what each container takes.

    Init containers run one after the other, beside the sidecars that started before them; sidecars stay.
    """
    sidecars, most = 0, 0
    for container in pod.containers:
        if container.is_sidecar:
            sidecars += amount(container)
            most = max(most, sidecars)
        elif container.is_init:
            most = max(most, sidecars + amount(container))
    return max(most, sidecars + total(amount, (c for c in pod.containers if not c.is_init)))


def total(amount: Callable[[Container], int], containers: Iterable[Container]) -> int:
    return sum(amount(container) for container in containers)
