# SPDX-License-Identifier: Apache-2.0
"""Two tenants of a daemon on one full card: who waits is told when the other gives memory back, or dies."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built, StartProcess
from tests.daemon.conftest import Daemon, eventually
from tests.memory_client import OK, OUT_OF_MEMORY, PLAIN, MemoryClient

GIB = 1 << 30
C = Path(__file__).resolve().parent.parent / "c"
Start = Callable[..., MemoryClient]


@pytest.fixture
def card() -> dict[str, str]:
    return {"GPULIMIT_SIM_PROFILE": "small"}


@pytest.fixture
def node(daemon: Callable[..., Daemon], card: dict[str, str]) -> Callable[..., Daemon]:
    """Start daemons of a node with a card of 4 GiB, of which twice as much may be promised."""
    return lambda **more: daemon(env=card, memory_overcommit="200", **more)


@pytest.fixture
def start(
    built: Built, compile_c: Any, daemon_env: dict[str, str], card: dict[str, str], run_dir: Path,
    start_process: StartProcess,
) -> Start:  # fmt: skip
    libraries = ("-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda", "-lnvidia-ml", "-pthread")
    flags = ("-D_GNU_SOURCE", f"-I{C}", "-Wno-unused-function", *libraries)
    binary = compile_c(C / "waiting" / "memory_client.c", *flags, name="memory_client")

    def begin(tenant: str, **quota: object) -> MemoryClient:
        env = daemon_env | card | {
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": tenant,
            **{f"GPULIMIT_{k.upper()}": str(v) for k, v in quota.items()},
        }  # fmt: skip
        return MemoryClient(start_process([binary], env=env, stdin=subprocess.PIPE))

    return begin


def on_card(node: Daemon, tenant: str) -> dict[str, Any]:
    found = node.tenant(tenant)
    return dict(found["gpus"][0]) if found else {}


def metric(node: Daemon, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"gpulimit_{name}{{"))


def test_what_one_tenant_gives_back_another_gets(node, start, tenant, other_tenant) -> None:
    here = node(nvml_interval="100ms")
    holder, waiter = start(tenant, memory="3GiB"), start(other_tenant, memory="3GiB", memory_wait=30)
    assert holder.ask("take", PLAIN, 3 * GIB)[0] == OK
    waiter.say("take", PLAIN, 2 * GIB)
    eventually(lambda: on_card(here, other_tenant).get("memory_waiting"))
    eventually(lambda: metric(here, "scheduler_wait_for_mem_total") == 1)
    eventually(lambda: metric(here, "scheduler_wait_queue_clients") == 1)
    assert holder.ask("give") == [OK]
    begin = time.monotonic()
    assert waiter.hear()[0] == OK
    assert time.monotonic() - begin < 3
    eventually(lambda: metric(here, "scheduler_mem_available_total") >= 1)
    eventually(lambda: metric(here, "scheduler_wait_queue_clients") == 0)
    gpu = on_card(here, other_tenant)
    assert (gpu["memory_waiting"], gpu["memory_waits"]) == (0, 1)
    assert (gpu["refused"], gpu["refused_by_card"]) == (0, 0)


def test_a_killed_holder_frees_the_card(node, start, tenant, other_tenant) -> None:
    here = node()
    holder, waiter = start(tenant, memory="3GiB"), start(other_tenant, memory="3GiB", memory_wait=30)
    assert holder.ask("take", PLAIN, 3 * GIB)[0] == OK
    waiter.say("take", PLAIN, 2 * GIB)
    eventually(lambda: on_card(here, other_tenant).get("memory_waiting"))
    holder.process.kill()
    assert waiter.hear()[0] == OK
    eventually(lambda: on_card(here, tenant).get("memory_used_bytes") == 0)


@pytest.mark.parametrize("is_there_again", [False, True])
def test_the_wait_ends_also_when_the_daemon_is_away(
    node, start, tenant, other_tenant, is_there_again: bool
) -> None:
    here = node()
    holder, waiter = start(tenant, memory="3GiB"), start(other_tenant, memory="3GiB", memory_wait=2)
    assert holder.ask("take", PLAIN, 3 * GIB)[0] == OK
    waiter.say("take", PLAIN, 2 * GIB)
    eventually(lambda: on_card(here, other_tenant).get("memory_waiting"))
    here.stop(signal.SIGKILL)
    if is_there_again:
        node()
    result, waited_ms, _ = waiter.hear()
    assert result == OUT_OF_MEMORY
    assert 2000 <= waited_ms < 6000
    waiter.say("take", PLAIN, 2 * GIB)
    assert holder.ask("give") == [OK]  # and memory comes over, daemon or not
    assert waiter.hear()[0] == OK


def test_waiting_is_the_daemons_to_allow(node, start, tenant) -> None:
    here = node()
    here.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "1GiB"})
    holder, waiter = start(tenant), start(tenant, memory_wait=30)
    assert holder.ask("take", PLAIN, GIB)[0] == OK
    result, waited_ms, _ = waiter.ask("take", PLAIN, GIB // 2)
    assert (result, waited_ms < 1000) == (OUT_OF_MEMORY, True)
    status, _, shown = here.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "1GiB", "memory_wait": 30})
    assert (status, shown["quota"]["memory_wait"]) == (200, "30")
    waiter.say("take", PLAIN, GIB // 2)
    eventually(lambda: on_card(here, tenant).get("memory_waiting"))
    here.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "1GiB"})
    assert waiter.hear()[0] == OUT_OF_MEMORY
    here.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "2GiB", "memory_wait": 30})
    result, waited_ms, _ = waiter.ask("take", PLAIN, 2 * GIB + 1)  # never fits, and that is said at once
    assert (result, waited_ms < 1000) == (OUT_OF_MEMORY, True)
    waiter.say("take", PLAIN, GIB + GIB // 2)
    eventually(lambda: on_card(here, tenant).get("memory_waiting"))
    here.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "3GiB", "memory_wait": 30})
    assert waiter.hear()[0] == OK
