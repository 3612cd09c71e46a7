# SPDX-License-Identifier: Apache-2.0
"""Every call of the daemon's on a file in /dev/shm, made to fail: the reason is said, books are kept, and no
descriptor and no file is left behind.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import posix_ipc
import pytest
from limiter._native import lib

from hypervisor.errors import SegmentError, SegmentFull
from hypervisor.shm import files, segment_store, segments
from hypervisor.shm.segment_store import Segments
from limiter import segment
from tests.conftest import SHM
from tests.segments import craft

ERRORS = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.EIO, errno.EFAULT)
FULL = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE)
PYTHON_CALLS = (
    *((os, name) for name in ("open", "fstat", "ftruncate", "fchmod", "posix_fallocate", "fchown")),
    *((mmap, "mmap"), (fcntl, "flock"), (fcntl, "lockf"), (fcntl, "fcntl"), (posix_ipc, "SharedMemory")),
    *((Path, "lstat"), (Path, "unlink"), (Path, "rmdir")),
)
C_CALLS = (
    *("gl_node_rename", "gl_node_sample", "gl_node_usage_begin", "gl_node_hold", "gl_node_reap"),
    *("gl_node_policy_begin", "gl_node_policy_check", "gl_node_state_begin", "gl_node_memory_changed"),
    *("gl_node_policy_allow", "gl_node_policy_grant", "gl_node_policy_heartbeat", "gl_node_state_heartbeat"),
)
NAMES = [f"{owner.__name__}.{name}" for owner, name in PYTHON_CALLS] + list(C_CALLS)


class Faults:
    """Makes the nth call of a name fail, and counts its calls."""

    def __init__(self) -> None:
        self.name, self.nth, self.number, self.calls = "", 0, 0, 0

    def arm(self, name: str, nth: int, number: int) -> None:
        self.name, self.nth, self.number, self.calls = name, nth, number, 0

    def is_due(self, name: str) -> bool:
        self.calls += name == self.name
        return name == self.name and self.calls == self.nth

    def of_python(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if self.is_due(name):
                raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **more)

        return call

    def __getattr__(self, name: str) -> Any:
        """Stand in for `lib`."""
        real = getattr(lib, name)
        if name not in C_CALLS:
            return real
        return lambda *arguments: -self.number if self.is_due(name) else real(*arguments)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, tenant: str) -> Iterator[Faults]:
    made = Faults()
    with monkeypatch.context() as patch:
        for owner, name in PYTHON_CALLS:
            patch.setattr(owner, name, made.of_python(f"{owner.__name__}.{name}", getattr(owner, name)))
        patch.setattr(files, "ASIDE", f"gpulimit.aside.{tenant}.")
        for module in (files, segments, segment_store):
            if hasattr(module, "lib"):
                patch.setattr(module, "lib", made)
        yield made
        made.arm("", 0, 0)


def left_over(tenant: str) -> tuple[set[str], int]:
    """Return the names of files that a failed call may leave, and how many descriptors are open."""
    names = {entry for entry in os.listdir(SHM) if entry.startswith(f"gpulimit.aside.{tenant}.")}  # noqa: PTH208
    return names, len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def use(node: Segments, tenant: str, uid: int) -> None:
    """Do what the daemon does with a tenant's files, from its start to the tenant's end."""
    opened: list[Any] = []
    try:
        opened.append(node.state(f"gpulimit.s.{tenant}"))
        opened.append(node.usage(tenant, uid))
        opened.append(node.policy(tenant))
        state, usage, policy = opened
        usage.count_living()
        usage.sample()
        usage.memory_changed(0)
        policy.withdraw(0)
        policy.grant(0, granted_ns=1, run_ahead_ns=1, is_shared=True)
        policy.beat(1, 1)
        state.beat(1, 1)
    finally:
        for one in reversed(opened):
            one.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("there", ["nothing", "books", "traps"])
def test_a_call_that_fails_is_said_and_leaves_nothing_behind(faults, tenant, name, there) -> None:
    uid = 4711 if os.geteuid() == 0 and there != "books" else os.geteuid()
    usage = SHM / f"gpulimit.u.{tenant}"
    node = Segments(lambda *_: None)
    for number in ERRORS:
        for nth in range(1, 12):
            prepare(usage, tenant, there)
            before, inode = left_over(tenant), usage.lstat().st_ino if there == "books" else 0
            faults.arm(name, nth, number)
            failure: Exception | None = None
            try:
                use(node, tenant, uid)
            except SegmentError as error:
                failure = error
            calls = faults.calls
            faults.arm("", 0, 0)
            names, descriptors = left_over(tenant)
            assert descriptors == before[1], (number, nth, failure)
            if name not in ("Path.lstat", "Path.unlink", "Path.rmdir"):  # what is set aside is told
                assert names == before[0], (number, nth, failure)
            if there == "books":
                assert usage.lstat().st_ino == inode
                assert segment.read(tenant).devices[0].card_bytes == 80 << 30
            if calls < nth:
                break
            is_said = failure is None or os.strerror(number) in str(failure) or "no memory" in str(failure)
            assert is_said, (number, nth, failure)
            if failure is not None and number in FULL and name not in C_CALLS:
                assert isinstance(failure, SegmentFull)
            for path in names - before[0]:
                (SHM / path).rmdir() if (SHM / path).is_dir() else (SHM / path).unlink()
            use(node, tenant, uid)  # and the next time it goes


def prepare(usage: Path, tenant: str, there: str) -> None:
    """Put what is to be there into /dev/shm."""
    paths = [SHM / f"gpulimit.{part}.{tenant}" for part in ("u", "p", "s", "lock.s")]
    if there != "books" or not usage.exists():
        for path in paths:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    if there == "books" and not usage.exists():
        usage.write_bytes(craft({"devices": [{}], "slots": []}))
        usage.chmod(0o600)
    if there == "traps":
        paths[0].mkdir()
        paths[1].symlink_to("/etc/passwd")
        paths[2].write_bytes(b"x")
        os.mkfifo(paths[3])
