# SPDX-License-Identifier: Apache-2.0
"""Checks that a tenant's request and memory fit on a GPU beside the reservations of living tenants. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hypervisor.errors import Refused
from hypervisor.model import DeviceQuota, Gpu, GpuUuid, TenantName, device_quota
from limiter.quota import Quota
from limiter.units import PERCENT

WAIT = "GPULIMIT_WAIT=SECONDS"
MAX_HOLDERS = 4
"""Largest number of holders that a refusal names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Request and memory that a tenant reserves, and its GPUs."""

    tenant: TenantName
    quota: Quota
    gpus: frozenset[GpuUuid]
    """GPUs that the tenant uses; empty if none yet."""
    began_s: float = 0.0
    """Unix time of its first process; 0 if not known."""


def candidates(quota: Quota, gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs that a tenant may use: those on which its memory list gives something."""
    return [gpu for gpu in gpus if device_quota(quota, gpu).memory_bytes > 0]


def counted_gpus(reservation: Reservation, gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs on which a reservation counts: those in use, or the only one that is allowed."""
    known = list(gpus)
    if reservation.gpus:
        return [gpu for gpu in known if gpu.uuid in reservation.gpus]
    possible = candidates(reservation.quota, known)
    return possible if len(possible) == 1 else []


def admit(
    wanted: Reservation,
    others: Iterable[Reservation],
    gpus: Iterable[Gpu],
    *,
    overcommit_percent: int,
    is_start: bool = False,
) -> None:
    """Raise Refused unless requests and memory fit on every GPU that the tenant uses, or on one that it may
    use.

    `is_start`: a process wants to start, which can wait.
    """
    known = list(gpus)
    if not known:
        return
    taken = [other for other in others if other.tenant != wanted.tenant]
    here = counted_gpus(wanted, known)
    chosen = here or candidates(wanted.quota, known)
    reasons = [conflict(wanted, taken, gpu, known, overcommit_percent) for gpu in chosen]
    if not reasons:
        there = ", ".join(f"{gpu.label} ({gpu.uuid})" for gpu in known)
        raise Refused(422, f"tenant {wanted.tenant}: its memory list names no GPU of this node: {there}")
    against = [reason for reason in reasons if reason]
    if against and (here or len(against) == len(reasons)):
        reason, held_by = against[0]
        held_by = held_by and (f", or wait with {WAIT} for {held_by}" if is_start else f"; held by {held_by}")
        raise Refused(409, f"tenant {wanted.tenant}: {reason}; ask for less{held_by}")


def conflict(
    wanted: Reservation, others: Sequence[Reservation], gpu: Gpu, gpus: Sequence[Gpu], overcommit_percent: int
) -> tuple[str, str] | None:
    """Return the reason that a reservation does not fit on a GPU, and its holders ("" if it never fits).

    None if it fits.
    """
    own = device_quota(wanted.quota, gpu)
    here = [(other, device_quota(other.quota, gpu)) for other in others if gpu in counted_gpus(other, gpus)]
    requested = sum(quota.request_percent for _, quota in here)
    if own.request_percent and requested + own.request_percent > PERCENT:
        free = f"{max(0, PERCENT - requested)}% is free"
        reason = f"request of {own.request_percent}% does not fit on GPU {gpu.label}, where {free}"
        return reason, holders(here, lambda quota: quota.request_percent, "%")
    reserved = sum(memory_of(quota) for _, quota in here)
    room = gpu.memory_bytes * overcommit_percent // PERCENT
    if own.is_memory_limited and reserved + own.memory_bytes > room:
        free = f"{max(0, room - reserved) >> 20} of {room >> 20} MiB is free"
        reason = f"memory of {own.memory_bytes >> 20} MiB does not fit on GPU {gpu.label}, where {free}"
        may_fit = own.memory_bytes <= room
        return reason, holders(here, lambda quota: memory_of(quota) >> 20, " MiB") if may_fit else ""
    return None


def memory_of(quota: DeviceQuota) -> int:
    """Return the bytes that a quota reserves; 0 without a memory quota."""
    return quota.memory_bytes if quota.is_memory_limited else 0


def holders(
    here: Iterable[tuple[Reservation, DeviceQuota]], amount: Callable[[DeviceQuota], int], unit: str
) -> str:
    """Return holders with amount and time, the largest first: "a (60% since 13:05:12Z), b (10%)"."""
    held = sorted(((amount(quota), other) for other, quota in here), key=lambda pair: -pair[0])
    held = [pair for pair in held if pair[0]]
    named = [f"{other.tenant} ({size}{unit}{since(other)})" for size, other in held[:MAX_HOLDERS]]
    rest = len(held) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def since(reservation: Reservation) -> str:
    """Return " since 13:05:12Z", in UTC; "" if the time is not known."""
    if not reservation.began_s:
        return ""
    return datetime.fromtimestamp(reservation.began_s, UTC).strftime(" since %H:%M:%SZ")
