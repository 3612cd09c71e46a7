# SPDX-License-Identifier: Apache-2.0
"""Merges clients that have the same labels. Pure.

Two samples with the same labels would make the whole page invalid. An example is a pod that is created again
under its old name before the old one has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypervisor.metrics.snapshot import STATES, ClientView

Pairs = tuple[tuple[str, str], ...]
BIGGEST = frozenset(
    {
        "client_memory_quota_exceeded",
        "client_core_quota_config_percent",
        "client_core_quota_effective_percent",
        "client_core_request_percent",
        "client_core_usage_ratio",
        "client_weight",
        "client_throttled",
        "client_pending_drop",
    }
)
"""Flags and other fields that cannot be summed; all others are bytes, times, counts and shares."""


def gpu_labels(uuid: str, index: int) -> Pairs:
    return ("gpu_uuid", uuid), ("gpu_index", str(index))


def client_labels(client: ClientView) -> Pairs:
    """Return a client's labels: the names of its pod, otherwise of the tenant."""
    who = client.who
    return (
        ("namespace", who.namespace),
        ("pod", who.pod),
        ("container", who.container),
        ("tenant", "" if who.pod else who.tenant),
        *gpu_labels(client.gpu_uuid, client.gpu_index),
        ("client_id", client.client_id),
        ("host_pid", str(client.host_pid or "")),
    )


def merged(clients: Iterable[ClientView]) -> dict[Pairs, ClientView]:
    """Return clients by their labels."""
    found: dict[Pairs, ClientView] = {}
    for client in clients:
        pairs = client_labels(client)
        before = found.get(pairs)
        found[pairs] = client if before is None else both(before, client)
    return found


def both(one: ClientView, other: ClientView) -> ClientView:
    """Return two clients as one: sums, the maximum of flags, and the worse state."""
    worse = max(one.state, other.state, key=STATES.index)
    return replace(
        one,
        values=joined(one.values, other.values),
        pod=joined(one.pod, other.pod),
        launches=dict(Counter(one.launches) + Counter(other.launches)),
        denied=dict(Counter(one.denied) + Counter(other.denied)),
        state=worse,
    )


def joined(one: Mapping[str, float | None], other: Mapping[str, float | None]) -> dict[str, float | None]:
    result: dict[str, float | None] = dict(one)
    for name, value in other.items():
        before = result.get(name)
        if before is None or value is None:
            result[name] = value if before is None else before
        else:
            result[name] = max(before, value) if name in BIGGEST else before + value
    return result
