# SPDX-License-Identifier: Apache-2.0
"""Tenants on one card: processes of a tenant share its quota, and nobody sees another tenant."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

MIB, GIB = 1 << 20, 1 << 30
QUOTA = 4 * GIB
CLIENT = Path(__file__).resolve().parent.parent / "sim" / "nvml_view_program.py"
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
SUCCESS, OUT_OF_MEMORY = 0, 2


class Client:
    """A program that obeys: it allocates, and says what the driver and NVML tell it."""

    def __init__(self, process: subprocess.Popen[str], env: dict[str, str]) -> None:
        self.process = process
        self.env = env
        assert self.answer() == "ready"

    def answer(self) -> Any:
        assert self.process.stdout
        assert self.process.stderr
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.stderr.read()}"
        return json.loads(line)

    def __call__(self, command: str, *arguments: Any) -> Any:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def free(self) -> int:
        free, _, result = self("cuda_info")
        assert result == SUCCESS
        return int(free)

    def pids(self) -> set[int]:
        """Return the processes that NVML lists here, by every version of the call."""
        lists = [self("processes", COMPUTE + version, 64)["rows"] for version in ("_v2", "_v3")]
        found = [{row["pid"] for row in rows} for rows in lists]
        assert found[0] == found[1]
        return found[0]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)


Start = Callable[..., Client]


@pytest.fixture
def start(quota_env: dict[str, str], start_process: Any) -> Iterator[Start]:
    """Start a client; keyword arguments are its environment."""

    def begin(**environ: str) -> Client:
        env = quota_env | environ
        return Client(start_process([sys.executable, CLIENT], env=env, stdin=subprocess.PIPE), env)

    return begin


def test_every_view_shows_the_quota_and_the_tenants_use(start: Start, note: Any) -> None:
    client = start()
    assert client("alloc", GIB) == SUCCESS
    free, total, _ = client("cuda_info")
    first, second = client("memory"), client("memory_v2")
    assert total == first["total"] == second["total"] == QUOTA
    assert first["free"] + first["used"] == QUOTA
    assert second["free"] + second["used"] + second["reserved"] == QUOTA
    used = [total - free, first["used"], second["used"]]
    assert max(used) - min(used) <= 4 * MIB
    note("context_mib", (used[0] - GIB) // MIB)
    assert client.pids() == {client.process.pid}


def test_processes_of_a_tenant_share_its_quota(start: Start) -> None:
    one, two = start(), start()
    assert one("alloc", 2 * GIB) == SUCCESS
    before = two("memory")["free"]
    assert two("alloc", 64 * MIB) == SUCCESS
    assert before <= 2 * GIB
    assert two("alloc", 2 * GIB) == OUT_OF_MEMORY
    assert abs(two.free() - one.free()) <= 4 * MIB
    assert one.pids() == two.pids() == {one.process.pid, two.process.pid}
    assert two("alloc", 512 * MIB) == SUCCESS


def test_tenants_do_not_see_each_other(start: Start, tenant: str, note: Any) -> None:
    one = start()
    assert one("alloc", GIB) == SUCCESS
    two = start(GPULIMIT_TENANT=f"{tenant}-two", GPULIMIT_MEMORY="11GiB")
    seen = [one.free() for _ in range(5)]
    got = 0
    while got < 10 and two("alloc", GIB) == SUCCESS:
        got += 1
        seen += [one.free(), one("memory")["free"]]
    two.kill()
    seen += [one.free() for _ in range(20)]
    note("neighbour_gib", got)
    assert max(seen) - min(seen) <= 2 * MIB
    assert one.pids() == {one.process.pid}


def test_a_killed_process_gives_its_memory_back_at_once(start: Start, note: Any) -> None:
    quota = {"GPULIMIT_MEMORY": str(5 * GIB)}
    holder, other = start(**quota), start(**quota)
    assert holder("alloc", 3 * GIB) == SUCCESS
    assert other("alloc", 64 * MIB) == SUCCESS
    assert other("alloc", 3 * GIB) == OUT_OF_MEMORY
    started = time.monotonic()
    os.kill(holder.process.pid, signal.SIGKILL)
    while other("alloc", 3 * GIB) != SUCCESS:
        assert time.monotonic() - started < 10
        time.sleep(0.005)
    took = time.monotonic() - started
    holder.process.wait(timeout=20)
    note("seconds_until_it_could_be_had", round(took, 3))
    assert took < 1.0


def test_a_process_after_a_killed_one_has_the_whole_quota(start: Start, note: Any) -> None:
    holder = start()
    assert holder("alloc", 3 * GIB) == SUCCESS
    holder.kill()
    next_one = start()
    started = time.monotonic()
    assert next_one("alloc", 3 * GIB) == SUCCESS
    took = time.monotonic() - started
    note("seconds_with_its_context", round(took, 3))
    assert took < 2.0


def test_nvidia_smi_shows_the_tenants_quota(start: Start, run_process: Any) -> None:
    client = start()
    assert client("alloc", GIB) == SUCCESS
    query = "--query-gpu=memory.total,memory.used,memory.free"
    command = ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits"]
    try:
        done = run_process(command, env=client.env, expect=0)
    except FileNotFoundError:
        pytest.skip("nvidia-smi is not installed")
    total, used, free = (int(field) for field in done.stdout.split(","))
    assert total == QUOTA // MIB
    assert abs(used - client("memory")["used"] // MIB) <= 4
    assert abs(free - client.free() // MIB) <= 4
