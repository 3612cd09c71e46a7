# SPDX-License-Identifier: Apache-2.0
"""Parses the quotas of a pod: gpulimit's annotations, or those of other systems. Pure.

The first dialect that a pod uses decides alone. So a pod that was moved by adding gpulimit's annotations is
not also held to the rest of the old ones:

1. `gpulimit.io/memory`, `/compute`, `/request`, `/weight`, `/priority`, `/memory-wait`, `/gang` for the whole
   pod, and `gpulimit.io/CONTAINER.memory` and so on for one container, which then has its own quota;
   fields that it does not name are the pod's. Annotations with only a gang are added to another dialect's.
2. nvshare's fork: `nvshare.com/gpu-memory-limit`, `/gpu-core-limit`, or the same under `xpushare.com`.
3. HAMi: the resources `nvidia.com/gpumem`, `gpumem-percentage`, `gpucores`, `priority` of each container.

An empty value sets nothing. An invalid value, a container that does not exist and a field that looks misspelt
are problems: a pod with problems never counts as a pod without a quota.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hypervisor.pods.pod import Container, Pod
from hypervisor.pods.quantity import compute_text, memory_text, quantity, size_bytes
from limiter import quota
from limiter.errors import QuotaError
from limiter.quota import Quota
from limiter.units import PERCENT

PREFIX = "gpulimit.io/"
OURS = "gpulimit.io"
"""Name of gpulimit's own dialect."""
FIELDS: Mapping[str, Callable[[str], str]] = {
    "memory": memory_text,
    "compute": compute_text,
    "request": compute_text,
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
    """A part of a pod's quota that cannot be applied."""

    key: str
    """The annotation or resource."""
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PodQuotas:
    """The quotas of a pod."""

    pod: Quota | None = None
    """Quota of all its containers together, except those in `containers`."""
    containers: Mapping[str, Quota] = field(default_factory=dict)
    """Quotas of the containers that have their own."""
    problems: tuple[QuotaProblem, ...] = ()
    dialect: str = ""
    """Name of the dialect; empty if the pod has no quota."""


@dataclass(frozen=True, slots=True)
class ParsedQuota:
    """Fields of one dialect: field to (value in quota syntax, its key in the pod)."""

    pod: Mapping[str, tuple[str, str]]
    containers: Mapping[str, Mapping[str, tuple[str, str]]]
    problems: tuple[QuotaProblem, ...] = ()

    @property
    def is_set(self) -> bool:
        return bool(self.pod or self.containers or self.problems)

    @property
    def is_gang_alone(self) -> bool:
        """True if there is a gang and no limit."""
        fields = {*self.pod, *(name for values in self.containers.values() for name in values)}
        return fields == {"gang"} and not self.problems


def quotas_of(pod: Pod) -> PodQuotas:
    """Return the quotas of a pod."""
    ours = read_own(pod)
    if not ours.is_set or ours.is_gang_alone:
        for dialect, read in (("nvshare", read_nvshare), ("HAMi", read_hami)):
            parsed = read(pod)
            if parsed.is_set:
                return to_pod_quotas(merged(parsed, ours), dialect)
    return to_pod_quotas(ours, OURS) if ours.is_set else PodQuotas()


def merged(parsed: ParsedQuota, more: ParsedQuota) -> ParsedQuota:
    """Return the fields of two dialects together."""
    names = (*parsed.containers, *(name for name in more.containers if name not in parsed.containers))
    containers = {
        name: {**parsed.containers.get(name, {}), **more.containers.get(name, {})} for name in names
    }
    return ParsedQuota({**parsed.pod, **more.pod}, containers, (*parsed.problems, *more.problems))


def to_pod_quotas(parsed: ParsedQuota, dialect: str) -> PodQuotas:
    problems = list(parsed.problems)
    whole = parse_quota(parsed.pod, problems)
    containers = {}
    for name, values in parsed.containers.items():
        found = parse_quota({**parsed.pod, **values}, problems)
        if found is not None:
            containers[name] = found
    if (whole is None or not whole.has_limits) and len(containers) == 1:
        # One container's alone: the others have no quota that theirs could be told from.
        whole, containers = next(iter(containers.values())), {}
    return PodQuotas(whole, containers, tuple(dict.fromkeys(problems)), dialect)


def parse_quota(values: Mapping[str, tuple[str, str]], problems: list[QuotaProblem]) -> Quota | None:
    """Return the quota of fields; None if they set nothing, or are invalid."""
    variables = {VARIABLES[name]: value for name, (value, _) in values.items()}
    keys = {VARIABLES[name]: key for name, (_, key) in values.items()}
    try:
        return quota.read(variables, flags=keys) if variables else None
    except QuotaError as error:
        problems.append(QuotaProblem(error.variable, str(error).partition(": ")[2]))
        return None


# ---- our own annotations ----


def read_own(pod: Pod) -> ParsedQuota:
    """Read `gpulimit.io/…`."""
    of_pod: dict[str, tuple[str, str]] = {}
    of_containers: dict[str, dict[str, tuple[str, str]]] = {}
    problems: list[QuotaProblem] = []
    names = {container.name for container in pod.containers}
    for key, value in pod.annotations.items():
        if not key.startswith(PREFIX) or not value.strip():
            continue
        container, dot, name = key.removeprefix(PREFIX).rpartition(".")
        if name not in FIELDS:
            if (not dot or container in names) and (meant := misspelt_field(name)):
                problems.append(
                    QuotaProblem(key, f"is no annotation of a quota; {PREFIX}{container}{dot}{meant} is")
                )
            continue
        if dot and container not in names:
            problems.append(QuotaProblem(key, f"the pod has no container {container!a}"))
            continue
        into = of_containers.setdefault(container, {}) if dot else of_pod
        add_field(into, name, value, key, problems)
    return ParsedQuota(
        of_pod, {name: values for name, values in of_containers.items() if values}, tuple(problems)
    )


def misspelt_field(name: str) -> str:
    """Return the field that a key seems to misspell."""
    low = name.lower()
    near = difflib.get_close_matches(low, FIELDS, 1, VERY_ALIKE)
    # "memory-limit" is like "memory-wait", and means "memory".
    with_more = [field for field in FIELDS if low.startswith(f"{field}-")]
    return next(iter(near or with_more or difflib.get_close_matches(low, FIELDS, 1, ALIKE)), "")


def add_field(
    into: dict[str, tuple[str, str]], name: str, value: str, key: str, problems: list[QuotaProblem]
) -> None:
    """Store a value in quota syntax."""
    try:
        into[name] = FIELDS[name](value), key
    except ValueError as error:
        problems.append(QuotaProblem(key, str(error)))


# ---- other systems' words ----


def read_nvshare(pod: Pod) -> ParsedQuota:
    """Read the annotations of nvshare's fork."""
    of_pod: dict[str, tuple[str, str]] = {}
    problems: list[QuotaProblem] = []
    for prefix in NVSHARE:
        memory, core = (
            pod.annotations.get(f"{prefix}{key}", "") for key in ("gpu-memory-limit", "gpu-core-limit")
        )
        try:
            if memory.strip() and "memory" not in of_pod:
                of_pod["memory"] = f"{megabytes(memory)}B", f"{prefix}gpu-memory-limit"
        except ValueError as error:
            problems.append(QuotaProblem(f"{prefix}gpu-memory-limit", str(error)))
        if core.strip() and "compute" not in of_pod:
            of_pod["compute"] = core.strip(), f"{prefix}gpu-core-limit"
    return ParsedQuota(of_pod, {}, tuple(problems))


def megabytes(text: str) -> int:
    """Return bytes; a small number without a unit is in MB, as documented by the fork."""
    plain = text.strip()
    is_number = plain.isascii() and plain.isdecimal()
    return int(plain) * MB if is_number and int(plain) < MIB else size_bytes(plain)


def read_hami(pod: Pod) -> ParsedQuota:
    """Read HAMi's resources. There, 0 is no limit, and neither is a percentage of 100 or more."""
    of_containers: dict[str, dict[str, tuple[str, str]]] = {}
    problems: list[QuotaProblem] = []
    for container in pod.containers:
        values: dict[str, tuple[str, str]] = {}
        for name, resource, form in HAMI_RESOURCES:
            key = HAMI + resource
            number = count(container.limits.get(key, ""), key, container, problems)
            value = "" if number is None else form(number)
            if value and name not in values:
                values[name] = value, f"{container.name}: {key}"
        if values:
            of_containers[container.name] = values
    return ParsedQuota({}, of_containers, tuple(problems))


def count(text: str, key: str, container: Container, problems: list[QuotaProblem]) -> int | None:
    """Return a resource's integer; None if it is not set."""
    if not text:
        return None
    try:
        number = quantity(text)
        if number.denominator != 1:
            raise ValueError(f"{text!a} is not a whole number")
    except ValueError as error:
        problems.append(QuotaProblem(f"{container.name}: {key}", str(error)))
        return None
    return int(number)


# ---- what a pod takes at most ----


def peak(pod: Pod, amount: Callable[[Container], int]) -> int:
    """Return a pod's peak of a resource, from the amount of each container.

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
