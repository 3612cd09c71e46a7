# SPDX-License-Identifier: Apache-2.0
"""Shared memory: makes, checks, reads and writes the segments of tenants and of the node.

A usage segment is its tenant's to write, and anybody may put a file into /dev/shm: what is there is used
only if it is a plain file of the right owner, size and layout, and is set aside otherwise. It is mapped,
since doorbells and books need it, but touched only by C code that survives the file being cut short. The
daemon's record lock on it keeps the tenant's processes from taking it for abandoned; closing any descriptor
of the file would drop that lock, so the file is opened once and read through `fd`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import posix_ipc
from limiter._native import ffi, lib

from hypervisor.errors import SegmentError
from hypervisor.model import DeviceQuota, GpuSample, GpuUuid
from limiter import segment
from limiter.quota import PriorityClass

DIRECTORY = segment.DIRECTORY
USAGE, POLICY, ASIDE = segment.PREFIX, segment.POLICY_PREFIX, "gpulimit.aside."
HEADER = struct.Struct("<QI")  # magic, version
MAGICS = (int(lib.GL_USAGE_MAGIC), int(lib.GL_POLICY_MAGIC))
OWN_LAYOUT = int(lib.GL_LAYOUT_VERSION)
LAYOUTS = 1000
"""More than there will be; what says that it has a later one is damaged."""
MOST_DEVICES = int(lib.GL_MAX_NODE_DEVICES)


def uuid_bytes(gpu: GpuUuid) -> bytes:
    """Return the 16 bytes in "GPU-8-4-4-4-12" or "MIG-8-4-4-4-12"."""
    return bytes.fromhex(gpu.partition("-")[2].replace("-", ""))[:16].ljust(16, b"\0")


def limits_of(device: Any) -> DeviceQuota:
    """Return the limits in one entry of a policy; whether memory is limited shows beside the card's size."""
    return DeviceQuota(
        memory_bytes=int(device.memory_limit_bytes),
        is_memory_limited=True,
        compute_percent=int(device.compute_limit_percent),
        request_percent=int(device.compute_request_percent),
        weight=int(device.weight),
        priority=PriorityClass(device.priority).quota_name,
        memory_wait_ns=int(device.memory_wait_ns),
    )


def check(result: int, what: str) -> int:
    """Raise SegmentError for a negative errno."""
    if result < 0:
        raise SegmentError(f"{what}: {os.strerror(-result)}")
    return result


def layout_of(path: Path) -> int | None:
    """Return which other version of the layout a file has; None for any other file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        header = os.pread(fd, HEADER.size, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    magic, version = HEADER.unpack(header) if len(header) == HEADER.size else (0, 0)
    return version if magic in MAGICS and version != OWN_LAYOUT and version < LAYOUTS else None


def aside_name(name: str, layout: int | None) -> str:
    """Return where a file goes that is in the way; the daemon whose layout it has looks for it there."""
    rest = name.removeprefix("gpulimit.")
    return f"{ASIDE}{rest}" if layout is None else f"{ASIDE}v{layout}.{rest}"


class Segment:
    """A mapped segment; `view` is the C structure. Close it when nobody uses `view` any more."""

    def __init__(self, name: str, kind: str, fd: int, size: int) -> None:
        self.name = name
        self.fd = fd
        try:
            self._map = mmap.mmap(fd, size)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise SegmentError(f"{name}: {error}") from error
        self.view: Any = ffi.from_buffer(f"struct {kind} *", self._map, require_writable=True)

    def close(self) -> None:
        if self.view is None:
            return
        ffi.release(self.view)
        self.view = None
        self._map.close()
        os.close(self.fd)


class UsageSegment(Segment):
    """A tenant's usage segment."""

    def __init__(self, tenant: str, fd: int) -> None:
        super().__init__(USAGE + tenant, "gl_usage", fd, segment.SIZE)
        self.tenant = tenant
        self._sample: Any = ffi.new("struct gl_sample *")
        self.bell: Any = ffi.addressof(self.view.header, "doorbell")
        """Where the doorbell is."""
        self.tenants_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        """To be handed to the tenant's processes: what they do to it, its place say, is not ours."""

    def close(self) -> None:
        if self.view is not None:
            os.close(self.tenants_fd)
        super().close()

    def sample(self) -> Any:
        """Return the sums of the moment, in a buffer that the next call overwrites. Raises SegmentError."""
        check(lib.gl_node_sample(self.view, self._sample), self.name)
        return self._sample

    def memory_changed(self, entry: int) -> None:
        """Wake the tenant's threads that wait for memory of one of its GPUs. Raises SegmentError."""
        check(lib.gl_node_memory_changed(self.view, entry), self.name)

    def count_living(self) -> int:
        """Return how many processes live in it, after giving back what the dead held. Raises SegmentError."""
        self.reap()
        sample = ffi.new("struct gl_sample *")
        check(lib.gl_node_sample(self.view, sample), self.name)
        return int(sample.slots)

    def reap(self) -> int:
        """Give back what dead processes hold; return how many there were."""
        return check(lib.gl_node_reap(self.view, self.fd), self.name)

    def read(self) -> segment.Usage:
        """Return all of it. Raises LayoutMismatch."""
        return segment.read_open(self.fd, DIRECTORY / self.name)

    @property
    def is_whole(self) -> bool:
        """Nobody has cut the file short."""
        return bool(os.fstat(self.fd).st_size == segment.SIZE)


class PolicySegment(Segment):
    """A tenant's policy segment."""

    def __init__(self, tenant: str, fd: int) -> None:
        super().__init__(POLICY + tenant, "gl_policy", fd, ffi.sizeof("struct gl_policy"))

    def allow(self, entry: int, gpu: GpuUuid, quota: DeviceQuota, *, is_suspended: bool) -> None:
        """Set the limits of one GPU and wake who waits."""
        values = ffi.new("struct gl_policy_device *")
        values.uuid = uuid_bytes(gpu)
        there = self.view.device[entry]
        if there.ready and bytes(there.uuid) != bytes(values.uuid):
            self.withdraw(entry)  # of another GPU: nobody may take the one's limits for the other's
        values.ready, values.suspended = 1, is_suspended
        values.memory_limit_bytes = quota.memory_bytes
        values.compute_limit_percent = quota.compute_percent
        values.compute_request_percent = quota.request_percent
        values.weight, values.priority = quota.weight, PriorityClass.of(quota.priority)
        values.memory_wait_ns = quota.memory_wait_ns
        check(lib.gl_node_policy_allow(self.view, entry, values), self.name)

    def limits(self) -> dict[bytes, tuple[DeviceQuota, bool]]:
        """Return the limits of each GPU, by the bytes of its UUID, and whether the tenant is suspended.

        Entries whose values no daemon writes are left out.
        """
        ready = [device for device in self.view.device if device.ready]
        return {
            bytes(device.uuid): (limits_of(device), bool(device.suspended))
            for device in ready
            if device.priority in set(PriorityClass) and 1 <= device.compute_limit_percent <= 100
        }

    def withdraw(self, entry: int) -> None:
        """Drop an entry: of an earlier daemon, or of a GPU that is gone."""
        nothing = ffi.new("struct gl_policy_device *")
        check(lib.gl_node_policy_allow(self.view, entry, nothing), self.name)

    def grant(
        self,
        entry: int,
        *,
        granted_ns: int,
        run_ahead_ns: int,
        is_shared: bool,
        exclusive_from_ns: int = 0,
        start_ns: int = 0,
        sharers: int = 0,
    ) -> None:
        """Say how far the tenant may go on one GPU and wake who waits: see `struct gl_grant`."""
        values = (granted_ns, run_ahead_ns, exclusive_from_ns, start_ns, is_shared, sharers)
        check(lib.gl_node_policy_grant(self.view, entry, ffi.new("struct gl_grant *", values)), self.name)

    def want_memory(self, entry: int, *, is_wanted: bool) -> None:
        """Say whether the tenant is to ring when it gives back memory of a GPU."""
        check(lib.gl_node_policy_want_memory(self.view, entry, is_wanted), self.name)

    def beat(self, now_ns: int, start_ns: int) -> None:
        """Say that the daemon is there."""
        check(lib.gl_node_policy_beat(self.view, now_ns, start_ns), self.name)

    def command(self) -> None:
        """Say that a command waits."""
        check(lib.gl_node_policy_command(self.view), self.name)


class StateSegment(Segment):
    """The node's state, for everybody."""

    def __init__(self, name: str, fd: int) -> None:
        super().__init__(name, "gl_state", fd, ffi.sizeof("struct gl_state"))

    def beat(self, now_ns: int, start_ns: int) -> None:
        check(lib.gl_node_state_beat(self.view, now_ns, start_ns), self.name)

    def show(self, index: int, sample: GpuSample, *, tenants: int, now_ns: int, gpus: int) -> None:
        """Publish what NVML says about a GPU; a failed answer keeps the time of the last good one."""
        values = ffi.new("struct gl_state_gpu *")
        values.uuid = uuid_bytes(sample.gpu.uuid)
        values.tenants = tenants
        values.memory_total_bytes = sample.gpu.memory_bytes
        values.memory_used_bytes = sample.memory_used_bytes
        values.utilisation_percent = sample.utilisation_percent or 0
        values.healthy = not sample.error
        values.sampled_ns = self.view.gpu[index].sampled_ns if sample.error else now_ns
        check(lib.gl_node_state_gpu(self.view, index, values, gpus), self.name)


class Segments:
    """Makes and opens them. `set_aside(name, reason)` is told of each file that could not be used."""

    def __init__(self, set_aside: Callable[[str, str], None]) -> None:
        self._told = set_aside

    def usage(self, tenant: str, uid: int) -> UsageSegment:
        """Open a tenant's usage segment if it can be used, else make a new one that belongs to `uid`."""
        size = segment.SIZE
        found = self._usage(tenant, uid)
        if found is None and self._take_back(USAGE + tenant):
            found = self._usage(tenant, uid)
        if found is None:
            fd = self._create(USAGE + tenant, size, mode=0o600, owner=uid)
            found = UsageSegment(tenant, fd)
            check(lib.gl_node_usage_begin(found.view, tenant.encode(), time.time_ns()), found.name)
        check(lib.gl_node_hold(found.fd), found.name)
        return found

    def _usage(self, tenant: str, uid: int) -> UsageSegment | None:
        """Open a tenant's usage segment; None if there is none that can be used."""
        fd = self._open(USAGE + tenant, segment.SIZE, owner=uid)
        found = UsageSegment(tenant, fd) if fd is not None else None
        if found is not None and lib.gl_node_sample(found.view, found._sample) < 0:
            found.close()
            self._aside(USAGE + tenant, "its header is not of this layout")
            return None
        return found

    def policy(self, tenant: str) -> PolicySegment:
        """Open the policy of an earlier daemon, which processes may still have mapped, or make one."""
        size = ffi.sizeof("struct gl_policy")
        found = self._policy(tenant, size)
        if found is None and self._take_back(POLICY + tenant):
            found = self._policy(tenant, size)
        if found is None:
            fd = self._create(POLICY + tenant, size, mode=0o644, owner=os.geteuid())
            found = PolicySegment(tenant, fd)
            check(lib.gl_node_policy_begin(found.view, tenant.encode(), time.time_ns()), found.name)
        return found

    def _policy(self, tenant: str, size: int) -> PolicySegment | None:
        """Open a tenant's policy; None if there is none that can be used."""
        fd = self._open(POLICY + tenant, size, owner=os.geteuid())
        found = PolicySegment(tenant, fd) if fd is not None else None
        if found is not None and lib.gl_node_policy_check(found.view) < 0:
            found.close()
            self._aside(POLICY + tenant, "its header is not of this layout")
            return None
        return found

    def state(self, name: str) -> StateSegment:
        """Make the node's segment anew. Raises SegmentError if another daemon holds it."""
        size = ffi.sizeof("struct gl_state")
        fd = self._open(name, size, owner=os.geteuid())
        if fd is None:
            fd = self._create(name, size, mode=0o644, owner=os.geteuid())
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise SegmentError(
                f"another daemon of this node is running ({DIRECTORY / name} is held)"
            ) from None
        state = StateSegment(name, fd)
        check(lib.gl_node_state_begin(state.view, time.time_ns(), os.getpid()), name)
        return state

    def has_usage(self, tenant: str) -> bool:
        """Whether a tenant has left a usage segment, fit for use or not."""
        return (DIRECTORY / (USAGE + tenant)).exists()

    def remove(self, tenant: str) -> None:
        """Remove a tenant's segments."""
        for prefix in (USAGE, POLICY):
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(f"/{prefix}{tenant}")

    def _open(self, name: str, size: int, *, owner: int) -> int | None:
        """Return a descriptor of an existing file that can be used; None: there is none (any more)."""
        path = DIRECTORY / name
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO put there must not hang us
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._aside(name, error.strerror or "cannot be opened")
            return None
        status = os.fstat(fd)
        reason = None
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            reason = "it is not a plain file"
        elif status.st_uid != owner:
            reason = f"it belongs to user {status.st_uid}"
        elif status.st_size != size:
            reason = f"it has {status.st_size} bytes and not {size}"
        if reason is None:
            return fd
        os.close(fd)
        self._aside(name, reason)
        return None

    def _aside(self, name: str, reason: str) -> None:
        """Rename a file out of the way: whoever has it mapped goes on undisturbed. One is kept per name."""
        path = DIRECTORY / name
        try:
            path.rename(DIRECTORY / aside_name(name, layout_of(path)))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SegmentError(f"{path} cannot be used ({reason}) nor set aside: {error}") from error
        self._told(name, reason)

    @staticmethod
    def _take_back(name: str) -> bool:
        """Give a file its name again that a daemon of another version set aside; _open checks what it is."""
        aside = DIRECTORY / aside_name(name, OWN_LAYOUT)
        try:
            # Not by rename, which would take the place of what a process has made meanwhile.
            os.link(aside, DIRECTORY / name, follow_symlinks=False)
            aside.unlink()
        except OSError:
            return False
        return True

    @staticmethod
    def _create(name: str, size: int, *, mode: int, owner: int) -> int:
        """Return a descriptor of a new segment, all zero."""
        try:
            made = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=mode, size=size)
            fd: int = made.fd
            os.fchmod(fd, mode)  # whatever the umask
            if owner != os.geteuid():
                os.fchown(fd, owner, -1)
        except PermissionError as error:
            posix_ipc.unlink_shared_memory(f"/{name}")
            raise SegmentError(
                f"cannot give {name} to user {owner}: the daemon must run as root to serve others"
            ) from error
        except (OSError, posix_ipc.Error) as error:
            raise SegmentError(f"cannot make {DIRECTORY / name}: {error}") from error
        return fd
