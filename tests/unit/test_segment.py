# SPDX-License-Identifier: Apache-2.0
"""Reading usage segments: right ones are read in full, and whatever else a tenant puts there does no harm."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limiter._native import ffi, lib

from limiter import segment
from limiter.errors import LayoutMismatch

UUID = bytes.fromhex("3430f7787a25704c90908b0bb2478114")
GIB = 1 << 30


def header(**changes: int) -> Any:
    """Return a whole segment with a right header, but for what `changes` says."""
    usage = ffi.new("struct gl_usage *")
    values = {"magic": lib.GL_USAGE_MAGIC, "version": lib.GL_LAYOUT_VERSION, "size": segment.SIZE, "ready": 1}
    for name, value in (values | changes).items():
        setattr(usage.header, name, value)
    return usage


def filled() -> Any:
    """Return a segment of one device and two processes."""
    usage = header(slots_used=3)
    device = usage.device[0]
    device.uuid = UUID
    device.ready = 1
    device.card_bytes, device.memory_limit_bytes = 80 * GIB, 4 * GIB
    device.compute_limit_percent, device.weight = 30, 100
    for slot, pid in ((0, 12), (2, 34)):
        row = usage.slot[slot]
        row.generation, row.pid, row.start_ticks, row.pid_namespace = 1, pid, 99, 4026531836
        row.name = b"train\x1b[31m"
        assert lib.gl_ledger_add(usage, 0, slot, slot, GIB, 4 * GIB) == 0
        row.account[0].kind_bytes[lib.GL_MEM_POOL] = GIB
        row.account[0].launches[lib.GL_GRAPH] = 7
    usage.slot[1].generation = 2
    return usage


@pytest.fixture
def put(tmp_path: Path) -> Callable[[Any], Path]:
    """Return a function that writes a segment file."""

    def write(content: Any) -> Path:
        path = tmp_path / "gpulimit.u.team"
        path.write_bytes(content if isinstance(content, bytes) else bytes(ffi.buffer(content)))
        return path

    return write


def test_whole_segment_is_read(put: Callable[[Any], Path]) -> None:
    usage = segment.read_file(put(filled()))
    (device,) = usage.devices
    assert usage.tenant == "team"
    assert usage.owner_uid == os.getuid()
    assert (device.uuid, device.card_bytes) == ("3430f778-7a25-704c-9090-8b0bb2478114", 80 * GIB)
    assert (device.memory_limit_bytes, device.used_bytes, device.compute_limit_percent) == (
        4 * GIB,
        2 * GIB,
        30,
    )
    assert [(p.slot, p.pid, p.name, p.is_alive) for p in usage.processes] == [
        (0, 12, "train?[31m", False),
        (2, 34, "train?[31m", False),
    ]
    (account,) = usage.processes[1].accounts
    assert (account.entry, account.used_bytes, account.kind_bytes["pool"], account.launches["graph"]) == (
        0,
        GIB,
        GIB,
        7,
    )


def test_the_devices_on_which_processes_wait_for_each_other_are_read(put: Callable[[Any], Path]) -> None:
    usage = filled()
    usage.device[1].uuid, usage.device[1].ready = UUID[::-1], 1
    assert segment.read_file(put(usage)).gang == segment.GangUsage()
    usage.gang.devices, usage.gang.released = 0xFFFF0003, 7
    read = segment.read_file(put(usage))
    assert read.gang.released == 7
    assert [device.entry for device in read.gang_devices] == [0, 1]


def test_living_process_is_told_by_its_record_lock(put: Callable[[Any], Path], start_process: Any) -> None:
    path = put(filled())
    offset = ffi.offsetof("struct gl_usage", "slot") + 2 * ffi.sizeof("struct gl_slot")
    program = (
        "import fcntl, sys, time\n"
        "f = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = start_process([sys.executable, "-c", program, path, str(offset)], env={})
    assert holder.stdout.readline() == "locked\n"
    assert [(p.is_alive, p.holder_pid) for p in segment.read_file(path).processes] == [
        (False, None),
        (True, holder.pid),
    ]
    holder.kill()
    holder.wait(timeout=10)
    assert [p.is_alive for p in segment.read_file(path).processes] == [False, False]


def test_operation_under_way_is_counted_as_done(put: Callable[[Any], Path]) -> None:
    usage = filled()
    busy, actor = 1 << 63, 2
    usage.slot[actor].account[0].op_total = 3 * GIB
    usage.device[0].ledger = busy | actor
    assert segment.read_file(put(usage)).devices[0].used_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"magic": 0}, "magic 0x0"),
        ({"magic": 0x1122334455667788}, "magic 0x1122334455667788"),
        ({"version": lib.GL_LAYOUT_VERSION + 1}, f"version {lib.GL_LAYOUT_VERSION + 1}"),
        ({"size": 4096}, "size 4096"),
        ({"ready": 0}, "ready 0"),
    ],
)
def test_another_header_is_refused_by_name(
    put: Callable[[Any], Path], change: dict[str, int], named: str
) -> None:
    with pytest.raises(LayoutMismatch) as caught:
        segment.read_file(put(header(**change)))
    assert named in caught.value.found
    assert f"version {lib.GL_LAYOUT_VERSION}" in caught.value.expected
    assert "gpulimit.u.team" in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 127, 128, segment.SIZE - 1, segment.SIZE + 1])
def test_another_size_is_refused(put: Callable[[Any], Path], size: int) -> None:
    with pytest.raises(LayoutMismatch, match=f"found {size} bytes"):
        segment.read_file(put(bytes(ffi.buffer(header()))[:size].ljust(size, b"\0")))


def test_huge_sparse_file_is_refused_without_reading_it(put: Callable[[Any], Path]) -> None:
    path = put(header())
    os.truncate(path, 1 << 40)
    with pytest.raises(LayoutMismatch):
        segment.read_file(path)


def test_what_is_no_file_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "gpulimit.u.team"
    os.mkfifo(path)
    with pytest.raises(LayoutMismatch, match="plain file"):
        segment.read_file(path)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        segment.read_file(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(LayoutMismatch, match="plain file"):
        segment.read_file(path)
    path.rmdir()
    with pytest.raises(FileNotFoundError):
        segment.read_file(path)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(0, (1 << 32) - 1))
def test_random_bytes_under_a_right_header_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, seed: int, used: int
) -> None:
    head = header(slots_used=used)
    raw = bytearray(random.Random(seed).randbytes(segment.SIZE))  # noqa: S311
    raw[: segment.HEADER_SIZE] = ffi.buffer(head)[: segment.HEADER_SIZE]
    # Entries that are not ready would be skipped.
    for entry in range(lib.GL_MAX_DEVICES):
        at = ffi.offsetof("struct gl_usage", "device") + entry * ffi.sizeof("struct gl_device")
        struct.pack_into("<I", raw, at + ffi.offsetof("struct gl_device", "ready"), 1)
    path = tmp_path_factory.mktemp("random") / "gpulimit.u.team"
    path.write_bytes(raw)
    usage = segment.read_file(path)
    path.unlink()
    assert len(usage.devices) == lib.GL_MAX_DEVICES
    assert len(usage.processes) <= lib.GL_MAX_SLOTS
    assert all(device.used_bytes < 1 << 48 for device in usage.devices)
    assert all(process.name.isprintable() for process in usage.processes)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=4096))
def test_arbitrary_small_files_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "gpulimit.u.team"
    path.write_bytes(content)
    with pytest.raises(LayoutMismatch):
        segment.read_file(path)


def test_reading_does_not_write_or_keep_the_file_open(put: Callable[[Any], Path]) -> None:
    path = put(filled())
    path.chmod(0o400)
    before = path.read_bytes()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    segment.read_file(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert path.read_bytes() == before


def test_tenants_are_listed_by_name_and_strange_names_are_not(tmp_path: Path) -> None:
    for name in (
        "gpulimit.u.b",
        "gpulimit.u.a",
        "gpulimit.u..hidden",
        "gpulimit.u.a b",
        "gpulimit.p.a",
        "gpulimit.u.",
    ):
        (tmp_path / name).touch()
    assert segment.tenants(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "a" * 64, "a\n"])
def test_path_of_what_is_no_tenant_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a tenant"):
        segment.path_of(name)


def test_lock_request_is_the_kernel_structure() -> None:
    assert segment.FLOCK.size == struct.calcsize("hhqqi4x") == 32
    assert fcntl.F_GETLK in (5, 12)
