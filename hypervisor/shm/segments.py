# SPDX-License-Identifier: Apache-2.0
"""Shared memory: checks, reads and writes the segments of tenants and of the node.

The tenant's processes write the usage segment. It is mapped for doorbells and counters, but only C code that
survives a truncated file touches it. The daemon holds a record lock on it, so that the tenant's processes do
not take it for abandoned. Closing any descriptor of the file would drop that lock, so the file is opened once
and read through `fd`.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Collection
from typing import Any

from limiter._native import ffi, lib

from hypervisor.errors import SegmentError, SegmentFull
from hypervisor.model import DeviceQuota, GpuSample, GpuUuid
from hypervisor.shm.files import error_of
from limiter import segment
from limiter.quota import GangMode, PriorityClass

DIRECTORY = segment.DIRECTORY
USAGE, POLICY = segment.PREFIX, segment.POLICY_PREFIX
MAX_DEVICES = int(lib.GL_MAX_NODE_DEVICES)


def uuid_bytes(gpu: GpuUuid) -> bytes:
    """Return the 16 bytes in "GPU-8-4-4-4-12" or "MIG-8-4-4-4-12"."""
    return bytes.fromhex(gpu.partition("-")[2].replace("-", ""))[:16].ljust(16, b"\0")


def limits_of(device: Any) -> DeviceQuota:
    """Return the limits in one entry of a policy. A memory limit of the card's size means no limit."""
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


class Segment:
    """A mapped segment; `view` is the C structure and must not be used after `close`."""

    def __init__(self, name: str, kind: str, fd: int) -> None:
        self.name = name
        self.fd = fd
        self.size = ffi.sizeof(f"struct {kind}")
        try:
            self._map = mmap.mmap(fd, self.size)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise error_of(DIRECTORY / name, error) from error
        self.view: Any = ffi.from_buffer(f"struct {kind} *", self._map, require_writable=True)

    def close(self) -> None:
        if self.view is None:
            return
        ffi.release(self.view)
        self.view = None
        self._map.close()
        os.close(self.fd)

    @property
    def is_whole(self) -> bool:
        """True if the file has its full length."""
        return bool(os.fstat(self.fd).st_size == self.size)

    def check(self, result: int) -> int:
        """Raise SegmentError for a negative errno."""
        if result == -errno.EFAULT and self.is_whole:
            raise SegmentFull(f"{self.name} cannot be read or written: /dev/shm has no memory left")
        return check(result, self.name)


class UsageSegment(Segment):
    """A tenant's usage segment."""

    def __init__(self, tenant: str, fd: int) -> None:
        super().__init__(USAGE + tenant, "gl_usage", fd)
        self.tenant = tenant
        self._sample: Any = ffi.new("struct gl_sample *")
        self.bell: Any = ffi.addressof(self.view.header, "doorbell")
        """Address of the doorbell."""
        self.tenants_fd = -1
        """Separate descriptor to pass to the tenant's processes: they can change its file offset."""
        try:
            self.tenants_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise error_of(DIRECTORY / self.name, error) from error

    def close(self) -> None:
        if self.view is not None and self.tenants_fd >= 0:
            os.close(self.tenants_fd)
        self.bell = None
        super().close()

    def begin(self) -> None:
        """Give a new file its header."""
        self.check(lib.gl_node_usage_begin(self.view, self.tenant.encode(), time.time_ns()))

    def check_header(self) -> bool:
        """Return True if the header has this layout. Raises SegmentError if it cannot be read."""
        result = lib.gl_node_sample(self.view, self._sample)
        return result != -errno.EPROTO and self.check(result) == 0

    def sample(self) -> Any:
        """Return the current sums, in a buffer that the next call overwrites. Raises SegmentError."""
        self.check(lib.gl_node_sample(self.view, self._sample))
        return self._sample

    def memory_changed(self, entry: int) -> None:
        """Wake the tenant's threads that wait for memory of one GPU. Raises SegmentError."""
        self.check(lib.gl_node_memory_changed(self.view, entry))

    def count_living(self) -> int:
        """Reap dead processes, then return the number of living ones. Raises SegmentError."""
        self.reap()
        sample = ffi.new("struct gl_sample *")
        self.check(lib.gl_node_sample(self.view, sample))
        return int(sample.slots)

    def reap(self) -> int:
        """Reap the slots of dead processes; return their number."""
        return self.check(lib.gl_node_reap(self.view, self.fd))

    def read(self, state: StateSegment, holders: Collection[int] | None = None) -> segment.Usage:
        """Return the segment's usage; `holders` restricts it to these processes. `state` says which tenant is
        charged for memory that several hold. Raises LayoutMismatch.
        """
        return segment.read_open(self.fd, DIRECTORY / self.name, holders, loans=(state.fd,))


class PolicySegment(Segment):
    """A tenant's policy segment."""

    def __init__(self, tenant: str, fd: int) -> None:
        super().__init__(POLICY + tenant, "gl_policy", fd)
        self.tenant = tenant

    def begin(self) -> None:
        """Give a new file its header."""
        self.check(lib.gl_node_policy_begin(self.view, self.tenant.encode(), time.time_ns()))

    def check_header(self) -> bool:
        """Return True if the header has this layout and the file its memory. Raises SegmentError."""
        try:
            os.posix_fallocate(self.fd, 0, self.size)
        except OSError as error:
            raise error_of(DIRECTORY / self.name, error) from error
        result = lib.gl_node_policy_check(self.view)
        return result != -errno.EPROTO and self.check(result) == 0

    def allow(self, entry: int, gpu: GpuUuid, quota: DeviceQuota, *, is_suspended: bool) -> None:
        """Set the limits of one GPU and wake waiting threads."""
        values = ffi.new("struct gl_policy_device *")
        values.uuid = uuid_bytes(gpu)
        there = self.view.device[entry]
        if there.ready and bytes(there.uuid) != bytes(values.uuid):
            self.withdraw(entry)  # no process may apply the old GPU's limits to the new GPU
        values.ready, values.suspended = 1, is_suspended
        values.memory_limit_bytes = quota.memory_bytes
        values.compute_limit_percent = quota.compute_percent
        values.compute_request_percent = quota.request_percent
        values.weight, values.priority = quota.weight, PriorityClass.of(quota.priority)
        values.memory_wait_ns = quota.memory_wait_ns
        self.check(lib.gl_node_policy_allow(self.view, entry, values))

    def join(self, mode: GangMode) -> None:
        """Set the tenant's gang mode. Threads that wait see it at the next `allow`."""
        self.check(lib.gl_node_policy_gang(self.view, mode))

    def limits(self) -> dict[bytes, tuple[DeviceQuota, bool]]:
        """Return limits and suspension of each GPU, by the bytes of its UUID.

        Entries with values that no daemon writes are left out.
        """
        ready = [device for device in self.view.device if device.ready]
        return {
            bytes(device.uuid): (limits_of(device), bool(device.suspended))
            for device in ready
            if device.priority in set(PriorityClass) and 1 <= device.compute_limit_percent <= 100
        }

    def withdraw(self, entry: int) -> None:
        """Remove an entry: it comes from an earlier daemon, or its GPU is gone."""
        nothing = ffi.new("struct gl_policy_device *")
        self.check(lib.gl_node_policy_allow(self.view, entry, nothing))

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
        """Publish the tenant's grant on one GPU and wake waiting threads: see `struct gl_grant`."""
        values = (granted_ns, run_ahead_ns, exclusive_from_ns, start_ns, is_shared, sharers)
        self.check(lib.gl_node_policy_grant(self.view, entry, ffi.new("struct gl_grant *", values)))

    def want_memory(self, entry: int, *, is_wanted: bool) -> None:
        """Set if the tenant must ring the doorbell when it frees memory of a GPU."""
        self.check(lib.gl_node_policy_want_memory(self.view, entry, is_wanted))

    def beat(self, now_ns: int, start_ns: int) -> None:
        """Publish the daemon's heartbeat."""
        self.check(lib.gl_node_policy_heartbeat(self.view, now_ns, start_ns))

    def command(self) -> None:
        """Announce a waiting command."""
        self.check(lib.gl_node_policy_command(self.view))


class StateSegment(Segment):
    """The node's state, which every process can read."""

    def __init__(self, name: str, fd: int, lock: int) -> None:
        super().__init__(name, "gl_state", fd)
        self._lock = lock
        """Descriptor of the file that only one daemon can lock."""

    def close(self) -> None:
        if self.view is not None:
            os.close(self._lock)
        super().close()

    def begin(self) -> None:
        """Give the file this daemon's header."""
        self.check(lib.gl_node_state_begin(self.view, time.time_ns(), os.getpid()))

    def beat(self, now_ns: int, start_ns: int) -> None:
        self.check(lib.gl_node_state_heartbeat(self.view, now_ns, start_ns))

    def show(self, index: int, sample: GpuSample, *, tenants: int, now_ns: int, gpus: int) -> None:
        """Publish NVML's sample of a GPU; a failed one keeps the time of the last good one."""
        values = ffi.new("struct gl_state_gpu *")
        values.uuid = uuid_bytes(sample.gpu.uuid)
        values.tenants = tenants
        values.memory_total_bytes = sample.gpu.memory_bytes
        values.memory_used_bytes = sample.memory_used_bytes
        values.utilisation_percent = sample.utilisation_percent or 0
        values.healthy = not sample.error
        values.sampled_ns = self.view.gpu[index].sampled_ns if sample.error else now_ns
        self.check(lib.gl_node_state_gpu(self.view, index, values, gpus))
