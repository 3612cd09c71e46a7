# SPDX-License-Identifier: Apache-2.0
"""Reads usage segments: the resources of a tenant's processes, as values. Read-only.

The tenant writes the segment, so all of it is hostile input. It is copied with bounded reads and never
mapped: its owner could truncate the file and so kill each process that has it mapped. Numbers are bounded as
the layout says, text is cleaned. `Process.is_alive` and `Process.holder_pid` come from the kernel's record
locks, which a tenant cannot forge. csrc/layout.h is the layout.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import struct
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from limiter._native import ffi, lib
from limiter.errors import LayoutMismatch


def text_of(constant: Any) -> str:
    """Return a string constant of a C header."""
    return cast(bytes, ffi.string(constant)).decode()


DIRECTORY = Path(text_of(lib.GL_SHM_DIRECTORY))
NAME_PREFIX = text_of(lib.GL_NAME_PREFIX)
"""Prefix of the names of all gpulimit files in DIRECTORY."""
PREFIX = text_of(lib.GL_USAGE_PREFIX)
POLICY_PREFIX = text_of(lib.GL_POLICY_PREFIX)
STATE_NAME = text_of(lib.GL_STATE_NAME)
"""Default name of the node's segment."""
LOCK_PREFIX = text_of(lib.GL_LOCK_PREFIX)
ASIDE_PREFIX = text_of(lib.GL_ASIDE_PREFIX)
MAX_TENANT_NAME_BYTES = int(lib.GL_TENANT_NAME_BYTES) - 1
TENANT = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{MAX_TENANT_NAME_BYTES - 1}}}")
USER_MARK = chr(lib.GL_USER_MARK)
LISTED = re.compile(rf"{TENANT.pattern}({USER_MARK}\d{{1,10}})?")
MEMORY_KINDS = ("plain", "managed", "array", "pool", "vmm", "graph", "overhead")
LAUNCH_KINDS = ("kernel", "cooperative", "graph", "captured")
SIZE = ffi.sizeof("struct gl_usage")
HEADER_SIZE = ffi.sizeof("struct gl_header")
SLOTS_OFFSET = ffi.offsetof("struct gl_usage", "slot")
SLOT_SIZE = ffi.sizeof("struct gl_slot")
GANG_OFFSET = ffi.offsetof("struct gl_usage", "gang")
GANG_SIZE = ffi.offsetof("struct gl_gang", "cover")
SHARES_OFFSET = ffi.offsetof("struct gl_usage", "share")
SHARE_SIZE = ffi.sizeof("struct gl_share")
FLOCK = struct.Struct("hhqqi4x")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as the tenant sees it."""

    entry: int
    """Place in the segment; accounts refer to it."""
    uuid: str
    """UUID without its prefix."""
    is_mig: bool
    card_bytes: int
    memory_limit_bytes: int
    used_bytes: int
    context_bytes: int
    refused: int
    refused_by_card: int
    compute_limit_percent: int
    weight: int
    granted_ns: int
    spent_ns: int
    throttled_ns: int
    throttled_count: int
    is_suspended: bool
    memory_waits: int = 0
    """Allocations that had to wait for memory."""
    memory_waited_ns: int = 0
    refund_ns: int = 0
    """Part of spent_ns that was charged too much; it reduces later charges."""

    @property
    def used_ns(self) -> int:
        """GPU time used, as far as known now. It can fall when a charge turns out to be too high."""
        return max(0, self.spent_ns - self.refund_ns)

    @property
    def is_used(self) -> bool:
        """True if the tenant holds memory on the GPU or has used its time."""
        return bool(self.used_bytes or self.spent_ns)

    @property
    def name(self) -> str:
        """NVML's UUID, "GPU-…" or "MIG-…"."""
        return f"{'MIG' if self.is_mig else 'GPU'}-{self.uuid}"


@dataclass(frozen=True, slots=True)
class Account:
    """Counters of one process on one device."""

    entry: int
    used_bytes: int
    kind_bytes: dict[str, int]
    contexts: int
    spent_ns: int
    outstanding_ns: int
    launches: dict[str, int]
    memory_waiting: int = 0
    """Threads that wait for memory."""
    queue_end_ns: int = 0
    """time.monotonic_ns() at which the outstanding work will be done; 0 if not known."""
    is_coarse: bool = False
    """True if the driver refuses timing events, so that the wall clock measures GPU time."""

    def queued_ns(self, at_ns: int) -> int:
        """GPU time that is charged and expected after `at_ns`, by time.monotonic_ns()."""
        return min(self.outstanding_ns, max(0, self.queue_end_ns - at_ns))


@dataclass(frozen=True, slots=True)
class Process:
    """One slot in use."""

    slot: int
    pid: int
    """Pid in the process's own namespace, by its own report."""
    host_pid: int | None
    """Pid in the host's namespace, by the process's own report."""
    holder_pid: int | None
    """Pid in this reader's namespace, by the kernel's report; None if dead, or not visible from here."""
    is_alive: bool
    start_ticks: int
    pid_namespace: int
    name: str
    accounts: tuple[Account, ...]


@dataclass(frozen=True, slots=True)
class GangUsage:
    """The tenant's processes as a gang, if they wait for each other."""

    entries: tuple[int, ...] = ()
    """Entries of the devices on which a process was seen to wait for other processes."""
    released: int = 0
    """Launches that started regardless of limit and turn, because running work waited for them."""
    spent_ns: int = 0
    """Time in which at least one of these devices worked."""
    forgiven_ns: int = 0
    """Time of work that waited for held launches, beyond its cost; it is not charged."""


@dataclass(frozen=True, slots=True)
class Usage:
    """A segment's content. Its rows may differ by moments: the tenant goes on while they are copied."""

    tenant: str
    owner_uid: int
    created_ns: int
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    gang: GangUsage = GangUsage()

    @property
    def gang_devices(self) -> tuple[Device, ...]:
        """Devices on which a process was seen to wait for other processes."""
        return tuple(device for device in self.devices if device.entry in self.gang.entries)

    def accounts(self, device: Device) -> list[Account]:
        """Return the accounts of living processes on a device."""
        return [a for p in self.processes if p.is_alive for a in p.accounts if a.entry == device.entry]

    def done_ns(self, device: Device, at_ns: int) -> int:
        """GPU time used until `at_ns`, by time.monotonic_ns(), without queued work."""
        return max(0, device.used_ns - sum(a.queued_ns(at_ns) for a in self.accounts(device)))


def path_of(tenant: str) -> Path:
    """Return the file of a tenant's segment. Raises ValueError if the name is invalid.

    `tenant` is NAME, or NAME@UID if several users have the name. NAME means this user's own tenant, if it
    exists.
    """
    name, _, user = tenant.partition(USER_MARK)
    if not TENANT.fullmatch(name) or not (user.isdigit() or USER_MARK not in tenant):
        raise ValueError(f"{tenant!r} is not a tenant's name")
    own = DIRECTORY / f"{PREFIX}{tenant}{USER_MARK}{os.geteuid()}"
    return own if not user and is_own(own) else DIRECTORY / (PREFIX + tenant)


def is_own(path: Path) -> bool:
    """True if a file is there and belongs to this user."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def tenants(directory: Path = DIRECTORY) -> list[str]:
    """Return the names of tenants that have a segment, sorted; it may be stale or damaged."""
    names = (entry.name.removeprefix(PREFIX) for entry in directory.glob(f"{PREFIX}*"))
    return sorted(name for name in names if LISTED.fullmatch(name))


def read_listed(name: str) -> Usage:
    """Return the usage of a name that `tenants` lists. Raises the exceptions of `read`."""
    return read_file(DIRECTORY / (PREFIX + name))


def read(tenant: str) -> Usage:
    """Return a tenant's usage; raise FileNotFoundError, PermissionError or LayoutMismatch."""
    return read_file(path_of(tenant))


def read_file(path: Path) -> Usage:
    """Return the usage in a segment file.

    A process that belongs to this tenant must not call it: closing a file drops the record locks that the
    process holds on it.
    """
    # O_NONBLOCK: the name may be a FIFO, and opening it must not hang.
    with contextlib.ExitStack() as opened:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        opened.callback(os.close, fd)
        return read_open(fd, path, loans=loan_files(opened))


def loan_files(opened: contextlib.ExitStack) -> tuple[int, ...]:
    """Return descriptors of the two files that record which tenant is charged for memory of several holders.

    One is that of tenants without a daemon, the other the daemon's. `opened` closes them.
    """
    fds = []
    for place in (DIRECTORY, DIRECTORY / STATE_NAME):
        with contextlib.suppress(OSError):
            fds.append(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK))
            opened.callback(os.close, fds[-1])
    return tuple(fds)


def read_open(
    fd: int, path: Path, holders: Collection[int] | None = None, *, loans: Collection[int] = ()
) -> Usage:
    """Return the usage in an open segment file, which stays open.

    `holders` restricts it to these processes by pid, and to one slot of each. So a tenant that writes
    hundreds of slots costs the reader no more than its real processes. `loans` are the files that record
    which tenant is charged for memory of several holders; without them, each holder counts as charged.
    """
    status = os.fstat(fd)
    check_file(path, status)
    usage = copy(path, fd)
    return Usage(
        tenant=path.name.removeprefix(PREFIX),
        owner_uid=status.st_uid,
        created_ns=usage.header.created_ns,
        devices=devices_of(usage, loans),
        processes=processes_of(usage, fd, holders, loans),
        gang=gang_of(usage),
    )


def check_file(path: Path, status: os.stat_result) -> None:
    """Raise LayoutMismatch if a file is not a regular file of the right size."""
    if not stat.S_ISREG(status.st_mode):
        raise LayoutMismatch(path, found="something other than a file", expected="a plain file")
    if status.st_size != SIZE:
        raise LayoutMismatch(path, found=f"{status.st_size} bytes", expected=f"{SIZE} bytes")


def copy(path: Path, fd: int) -> Any:
    """Return a private copy of a segment. Raises LayoutMismatch if its header is wrong."""
    raw = bytearray(SIZE)
    read_part(path, fd, raw, 0, SLOTS_OFFSET)
    usage = ffi.from_buffer("struct gl_usage *", raw)
    header = usage.header
    found = (header.magic, header.version, header.size, header.ready)
    expected = (lib.GL_USAGE_MAGIC, lib.GL_LAYOUT_VERSION, SIZE, 1)
    if found != expected:
        raise LayoutMismatch(path, found=header_text(found), expected=header_text(expected))
    # Slots that were never used are not copied: they are nearly all of the file.
    read_part(path, fd, raw, SLOTS_OFFSET, min(header.slots_used, lib.GL_MAX_SLOTS) * SLOT_SIZE)
    read_part(path, fd, raw, GANG_OFFSET, GANG_SIZE)
    if header.shares_used:
        read_part(path, fd, raw, SHARES_OFFSET, min(header.shares_used, lib.GL_MAX_SHARES) * SHARE_SIZE)
    return usage


def read_part(path: Path, fd: int, raw: bytearray, offset: int, size: int) -> None:
    """Fill a part of a buffer with the same part of a file."""
    got = os.preadv(fd, [memoryview(raw)[offset : offset + size]], offset)
    if got != size:
        raise LayoutMismatch(path, found=f"{offset + got} bytes", expected=f"{SIZE} bytes")


def header_text(values: tuple[int, int, int, int]) -> str:
    """Return a header for an error line."""
    magic, version, size, ready = values
    return f"magic {magic:#x}, version {version}, size {size}, ready {ready}"


def gang_of(usage: Any) -> GangUsage:
    """Return the segment's data about the gang."""
    entries = tuple(entry for entry in range(lib.GL_MAX_DEVICES) if usage.gang.devices >> entry & 1)
    return GangUsage(entries, usage.gang.released, usage.gang.spent_ns, usage.gang.forgiven_ns)


def lent_bytes(usage: Any, entry: int, slot: int, loans: Collection[int]) -> int:
    """Return the bytes of a device, in one slot or all, that are now charged to another tenant."""
    return sum(lib.gl_share_lent(usage, entry, slot, fd) for fd in loans) if usage.header.shares_used else 0


def devices_of(usage: Any, loans: Collection[int]) -> tuple[Device, ...]:
    """Return the entries in use."""
    return tuple(
        Device(
            entry=entry,
            uuid=str(uuid.UUID(bytes=bytes(device.uuid))),
            is_mig=bool(device.mig),
            card_bytes=device.card_bytes,
            memory_limit_bytes=device.memory_limit_bytes,
            used_bytes=max(
                0, lib.gl_ledger_total(usage, entry) - lent_bytes(usage, entry, lib.GL_MAX_SLOTS, loans)
            ),
            context_bytes=device.context_bytes,
            refused=device.refused,
            refused_by_card=device.refused_by_card,
            compute_limit_percent=device.compute_limit_percent,
            weight=device.weight,
            granted_ns=device.granted_ns,
            spent_ns=device.spent_ns,
            throttled_ns=device.throttled_ns,
            throttled_count=device.throttled_count,
            is_suspended=bool(device.suspended),
            memory_waits=device.memory_waits,
            memory_waited_ns=device.memory_waited_ns,
            refund_ns=device.refund_ns,
        )
        for entry, device in enumerate(usage.device)
        if device.ready == 1
    )


def processes_of(
    usage: Any, fd: int, holders: Collection[int] | None, loans: Collection[int]
) -> tuple[Process, ...]:
    """Return the slots in use, including those of dead processes: their memory is still charged."""
    used = min(usage.header.slots_used, lib.GL_MAX_SLOTS)
    rows: list[Process] = []
    seen: set[int] = set()
    for index, slot in enumerate(usage.slot[0:used]):
        if not slot.generation & 1:
            continue
        if holders is not None and len(seen) == len(holders):
            break
        is_alive, holder = lock_holder(fd, index)
        if holders is not None:
            if holder is None or holder in seen or holder not in holders:
                continue
            seen.add(holder)
        rows.append(
            Process(
                slot=index,
                pid=slot.pid,
                host_pid=slot.host_pid or None,
                holder_pid=holder,
                is_alive=is_alive,
                start_ticks=slot.start_ticks,
                pid_namespace=slot.pid_namespace,
                name=clean(slot.name),
                accounts=accounts_of(usage, index, loans),
            )
        )
    return tuple(rows)


def accounts_of(usage: Any, slot: int, loans: Collection[int]) -> tuple[Account, ...]:
    """Return a process's accounts on the tenant's devices."""
    return tuple(
        Account(
            entry=entry,
            used_bytes=max(
                0, lib.gl_ledger_account(usage, entry, slot) - lent_bytes(usage, entry, slot, loans)
            ),
            kind_bytes=dict(zip(MEMORY_KINDS, account.kind_bytes, strict=True)),
            contexts=account.contexts,
            spent_ns=account.spent_ns,
            outstanding_ns=account.outstanding_ns,
            launches=dict(zip(LAUNCH_KINDS, account.launches, strict=True)),
            memory_waiting=account.memory_waiting,
            queue_end_ns=account.queue_end_ns,
            is_coarse=bool(account.coarse),
        )
        for entry, account in enumerate(usage.slot[slot].account)
        if usage.device[entry].ready == 1
    )


def lock_holder(fd: int, slot: int) -> tuple[bool, int | None]:
    """Return if the slot's process lives, and its pid in this namespace by the kernel's report."""
    first = SLOTS_OFFSET + slot * SLOT_SIZE
    is_alive, pid = holder_of(fd, first, 1)
    # The second byte's lock survives when a program closes its descriptors, but does not tell the pid.
    return (True, pid) if is_alive else (holder_of(fd, first + 1, 1)[0], None)


def holder_of(fd: int, offset: int, size: int) -> tuple[bool, int | None]:
    """Return if another process holds a lock on any of these bytes, and its pid by the kernel's report.

    Size 0 means to the file's end.
    """
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, size, 0)
    kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return kind != fcntl.F_UNLCK, pid if kind != fcntl.F_UNLCK and pid > 0 else None


def is_living(fd: int) -> bool:
    """True if another process is in the segment, is joining it, or has it open as its daemon."""
    return holder_of(fd, 0, 0)[0]


def clean(chars: Any) -> str:
    """Return a tenant's text without characters that could steer a terminal."""
    text = cast(bytes, ffi.string(chars)).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)
