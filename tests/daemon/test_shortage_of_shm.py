# SPDX-License-Identifier: Apache-2.0
"""A /dev/shm that is small or full: books in which processes live are kept, and no quota is passed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi

from tests.daemon.conftest import SmallShm, eventually, needs_root

pytestmark = needs_root()
SMALL = {"GPULIMIT_SIM_PROFILE": "small"}
OUT_OF_MEMORY = 2
SLOTS = ffi.offsetof("struct gl_usage", "slot")
SIZE = ffi.sizeof("struct gl_usage")


def books(shm: SmallShm, tenant: str) -> tuple[int, int]:
    """Return which file a tenant's books are, and how much memory they take."""
    status = (shm.path / f"gpulimit.u.{tenant}").stat()
    return status.st_ino, status.st_blocks * 512


def used_mib(node: Any, tenant: str) -> int:
    row = node.tenant(tenant)
    return sum(gpu.get("memory_used_bytes", 0) for gpu in row["gpus"]) >> 20 if row else -1


def fill(path: Path) -> None:
    """Take what has come free since shm.fill()."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def punch(path: Path, offset: int, size: int) -> None:
    """Make a hole in a file: its memory is given back."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDWR)
    assert libc.fallocate(fd, 3, ctypes.c_long(offset), ctypes.c_long(size)) == 0
    os.close(fd)


@pytest.mark.parametrize("is_full", [False, True], ids=["small", "full"])
def test_a_restart_takes_no_memory_for_books_and_keeps_quotas(
    daemon, holder, small_shm, tenant, is_full
) -> None:
    """Ten tenants in 8 MiB: to read every slot of their books would take 15 MiB."""
    shm = small_shm("8m")
    node = daemon(env=SMALL, prefix=shm.prefix)
    names = [f"{tenant}-{number}" for number in range(10)]
    first = [holder(name, prefix=shm.prefix, memory="16MiB") for name in names]
    assert [one.tell("alloc 10") for one in first] == [0] * 10
    before = {name: books(shm, name) for name in names}
    if is_full:
        shm.fill()
    node.stop(signal.SIGKILL)
    again = daemon(env=SMALL, prefix=shm.prefix)
    for name in names:
        eventually(lambda name=name: (again.tenant(name) or {}).get("workers"))
    assert {name: books(shm, name) for name in names} == before
    assert [used_mib(again, name) for name in names] == [10] * 10
    assert "segment_set_aside" not in again.state()["counts"]
    if not is_full:
        second = [holder(name, prefix=shm.prefix, memory="16MiB") for name in names[:3]]
        assert [one.tell("alloc 10") for one in second] == [OUT_OF_MEMORY] * 3
    assert [one.tell("alloc 10") for one in first] == [OUT_OF_MEMORY] * 10


def test_books_that_cannot_be_read_for_want_of_memory_are_kept_and_their_tenant_is_held_back(
    daemon, holder, small_shm, tenant
) -> None:
    """The tenant has made a hole in its books, and /dev/shm has no page for it: nothing is known of it."""
    shm = small_shm("8m")
    node = daemon(env=SMALL, prefix=shm.prefix)
    one = holder(prefix=shm.prefix, memory="16MiB")
    assert one.tell("alloc 10") == 0
    path, inode = shm.path / f"gpulimit.u.{tenant}", books(shm, tenant)[0]
    saved = path.read_bytes()
    one.process.send_signal(signal.SIGSTOP)
    node.stop(signal.SIGKILL)
    filled = shm.fill()
    punch(path, 0, SIZE)
    fill(filled)
    again = daemon(env=SMALL, prefix=shm.prefix)
    row = eventually(lambda: again.tenant(tenant))
    assert "no memory left" in row["problem"]
    eventually(lambda: states(again, tenant) == {"degraded"})
    other = holder(prefix=shm.prefix, memory="16MiB", wait="0.5")
    assert other.tell("alloc 10") not in (0, OUT_OF_MEMORY)
    other.process.stdin.close()
    assert "no memory left" in other.process.stderr.read()
    assert path.stat().st_ino == inode

    filled.unlink()
    with path.open("r+b") as file:
        file.write(saved)
    one.process.send_signal(signal.SIGCONT)
    eventually(lambda: not (again.tenant(tenant) or {"problem": 1}).get("problem"))
    eventually(lambda: again.tenant(tenant)["workers"])
    assert used_mib(again, tenant) == 10
    assert one.tell("alloc 10") == OUT_OF_MEMORY
    assert path.stat().st_ino == inode


def metrics(node: Any) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=10) as page:
        return page.read().decode()


def states(node: Any, tenant: str) -> set[str]:
    """Return the enforcement states that hold for a tenant."""
    found = set()
    for line in metrics(node).splitlines():
        if line.startswith("gpulimit_client_enforcement_state{") and tenant in line and line.endswith(" 1"):
            found.add(line.partition('state="')[2].partition('"')[0])
    return found


def test_books_that_become_unreadable_cost_gpu_time_until_they_can_be_read(
    daemon, client, small_shm, tenant
) -> None:
    shm = small_shm("8m")
    node = daemon(prefix=shm.prefix)
    one = client(prefix=shm.prefix)
    gpu = node.state()["gpus"][0]
    one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
    path = shm.path / f"gpulimit.u.{tenant}"
    filled = shm.fill()
    with path.open("r+b") as file:  # it says that it uses slots for which there is no memory
        file.seek(ffi.offsetof("struct gl_header", "slots_used"))
        file.write((512).to_bytes(4, "little"))
    eventually(lambda: "no memory left" in (node.tenant(tenant).get("problem") or ""))
    device = one.tell(order="look")["devices"][0]
    assert (device["shared"], device["granted_ns"]) == (1, 0)
    assert path.stat().st_size == SIZE
    filled.unlink()
    eventually(lambda: not node.tenant(tenant).get("problem"))
    time.sleep(0.3)
    assert not one.tell(order="look")["devices"][0]["shared"]
    assert "Traceback" not in node.log.read_text()
