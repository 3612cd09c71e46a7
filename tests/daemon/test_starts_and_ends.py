# SPDX-License-Identifier: Apache-2.0
"""Processes that are stopped, killed or replaced at every step of joining, while the daemon is replaced: each
is taken in at the end, and what the dead held is given back.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import eventually
from tests.sim.conftest import points_library as points_library

pytestmark = pytest.mark.timeout(180)  # a library may have to be built first
SMALL = {"GPULIMIT_SIM_PROFILE": "small"}
OUT_OF_MEMORY = 2
STEPS = ("registered", "opened", "locked", "claimed", "joined")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def used_mib(node: Any, tenant: str) -> int:
    row = node.tenant(tenant)
    return sum(gpu.get("memory_used_bytes", 0) for gpu in row["gpus"]) >> 20 if row else 0


@pytest.mark.parametrize("has_sibling", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_is_stopped_while_it_joins_and_the_daemon_is_replaced_gets_in(
    daemon, holder, points_library, tenant, step, has_sibling
) -> None:
    node = daemon(env=SMALL)
    if has_sibling:
        assert holder(memory="64MiB").tell("alloc 20") == 0
    point = {"GPULIMIT_TEST_POINT": f"joining-{step}:1:{int(signal.SIGSTOP)}"}
    one = holder(library=points_library, env=point, memory="64MiB")
    one.order("alloc 40")
    eventually(lambda: state_of(one.process.pid) == "T")
    node.stop(signal.SIGKILL)
    again = daemon(env=SMALL)
    time.sleep(1.2)  # it sweeps
    one.process.send_signal(signal.SIGCONT)
    assert one.answer() == 0
    eventually(lambda: len((again.tenant(tenant) or {"workers": ()})["workers"]) == 1 + has_sibling)
    assert used_mib(again, tenant) == 40 + 20 * has_sibling
    assert holder(memory="64MiB").tell("alloc 30") == OUT_OF_MEMORY


def test_a_process_stopped_over_its_whole_wait_while_the_daemon_is_replaced_gets_in(
    daemon, holder, tenant
) -> None:
    """It is stopped while it waits for the answer; the connection breaks, and its time has run out."""
    node = daemon(env=SMALL)
    node.process.send_signal(signal.SIGSTOP)
    one = holder(memory="64MiB", wait="1")
    one.order("alloc 40")
    time.sleep(0.5)
    one.process.send_signal(signal.SIGSTOP)
    node.stop(signal.SIGKILL)
    time.sleep(1)
    daemon(env=SMALL)
    one.process.send_signal(signal.SIGCONT)
    assert one.answer() == 0


def test_a_process_that_began_without_the_daemon_gets_in_when_it_calls_again(daemon, holder, tenant) -> None:
    """Only a quota's refusal is for good."""
    one = holder(memory="64MiB", wait="0")
    assert one.tell("try") != 0
    node = daemon(env=SMALL)
    time.sleep(0.3)
    assert eventually(lambda: one.tell("try") == 0)
    assert one.tell("alloc 40") == 0
    assert one.tell("alloc 40") == OUT_OF_MEMORY
    assert used_mib(node, tenant) == 40


def test_memory_of_an_image_that_was_replaced_in_place_is_given_back(daemon, holder, tenant) -> None:
    node = daemon(env=SMALL)
    one = holder(memory="64MiB")
    assert one.tell("alloc 40") == 0
    assert one.tell("exec") == 0
    assert one.tell("alloc 1") == 0
    eventually(lambda: used_mib(node, tenant) == 1, within_s=3)
    assert len(node.tenant(tenant)["workers"]) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_memory_of_a_process_that_dies_before_it_registers_with_the_next_daemon_is_given_back(
    daemon, holder, tenant, when
) -> None:
    node = daemon(env=SMALL)
    dying, living = holder(memory="64MiB"), holder(memory="64MiB")
    assert dying.tell("alloc 40") == 0
    assert living.tell("alloc 1") == 0
    dying.process.send_signal(signal.SIGSTOP)
    node.stop(signal.SIGKILL)
    if when == "before":
        dying.kill()
    again = daemon(env=SMALL)
    eventually(lambda: (again.tenant(tenant) or {}).get("workers"))
    if when == "after":
        assert used_mib(again, tenant) == 41
        dying.kill()
    eventually(lambda: used_mib(again, tenant) == 1, within_s=3)


@pytest.mark.parametrize("is_reused", [False, True], ids=["closed", "numbers taken"])
@pytest.mark.parametrize("has_daemon", [True, False], ids=["daemon", "alone"])
def test_a_program_that_closes_every_descriptor_keeps_its_slot(
    daemon, holder, tenant, has_daemon, is_reused
) -> None:
    node = daemon(env=SMALL) if has_daemon else None
    one = holder(memory="64MiB", has_daemon=has_daemon)
    assert one.tell("alloc 40") == 0
    one.tell("close")
    if is_reused:
        one.tell("reuse")
    time.sleep(1.2)  # a daemon sweeps
    other = holder(memory="64MiB", has_daemon=has_daemon)
    assert other.tell("alloc 40") == OUT_OF_MEMORY
    assert other.tell("alloc 20") == 0
    assert one.tell("alloc 10") == OUT_OF_MEMORY
    other.kill()
    assert eventually(lambda: one.tell("alloc 20") == 0)  # what the dead held is found as before
    if node is not None:
        assert used_mib(node, tenant) == 60
        node.stop(signal.SIGKILL)
        again = daemon(env=SMALL)
        eventually(lambda: used_mib(again, tenant) == 60)


def test_a_forked_child_does_not_keep_its_parents_slot(holder, tenant) -> None:
    one = holder(memory="64MiB", has_daemon=False)
    assert one.tell("alloc 40") == 0
    assert one.tell("fork") == 0
    one.process.kill()
    one.process.wait()
    assert holder(memory="64MiB", has_daemon=False).tell("alloc 40") == 0
    os.killpg(one.process.pid, signal.SIGKILL)


def test_a_tenant_under_two_daemons_is_refused_by_the_second_with_the_holder(
    daemon, holder, tenant, run_dir, tmp_path
) -> None:
    first = daemon(env=SMALL)
    assert holder(memory="64MiB").tell("alloc 10") == 0
    second = {
        "socket": str(run_dir / "second.sock"),
        "state_dir": str(tmp_path / "second"),
        "state_segment": f"gpulimit.s.{tenant}-b",
        "metrics_addr": "",
    }
    daemon(env=SMALL, **second)
    begin = time.monotonic()
    other = holder(memory="64MiB", env={"GPULIMIT_SOCKET": second["socket"]})
    assert other.tell("alloc 10") not in (0, OUT_OF_MEMORY)
    assert time.monotonic() - begin < 5
    other.process.stdin.close()
    said = other.process.stderr.read()
    assert f"served by another daemon of this machine, process {first.process.pid}" in said
    assert f"/dev/shm/gpulimit.u.{tenant}" in said
