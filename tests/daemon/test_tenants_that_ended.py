# SPDX-License-Identifier: Apache-2.0
"""A tenant without living processes keeps nothing from a living one: no request, memory, name or place."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.daemon.conftest import eventually, needs_root

GIB = 1 << 30


def test_what_an_ended_tenant_was_promised_is_free_at_once(daemon, client, tenant, other_tenant) -> None:
    node = daemon()
    client(request=60, memory="60GiB").kill()
    # Its end may not have been noticed yet: it is looked for before anybody is refused.
    assert client(other_tenant, request=60, memory="60GiB").answer["status"] == 200
    refused = client(tenant, is_refused=True, request=60)
    assert refused.answer["status"] == 409
    assert f"or wait with GPULIMIT_WAIT=SECONDS for {other_tenant} (60% since " in refused.answer["error"]
    assert node.tenant(other_tenant) is not None


def test_ten_tenants_end_one_after_the_other(daemon, client, tenant) -> None:
    daemon()
    for number in range(10):
        one = client(f"{tenant}-{number}", request=60, memory="60GiB")
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()


def test_a_tenant_taken_over_that_ends_without_coming_back_holds_nothing(
    daemon, client, tenant, other_tenant
) -> None:
    node = daemon()
    one = client(request=60, memory="60GiB")
    node.stop(signal.SIGKILL)
    again = daemon()
    eventually(lambda: again.tenant(tenant))
    refused = client(other_tenant, is_refused=True, request=60)
    assert f"for {tenant} (60% since " in refused.answer["error"]  # since its start, not the daemon's
    one.kill()
    assert client(other_tenant, request=60, memory="60GiB").answer["status"] == 200


def test_an_operator_s_quota_stays_for_the_next_start(daemon, client, tenant, other_tenant) -> None:
    node = daemon()
    one = client(memory="4GiB")
    node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "3GiB"})
    one.kill()
    eventually(lambda: not node.tenant(tenant)["workers"])
    assert client(memory="4GiB").tell(order="look")["devices"][0]["memory_limit_bytes"] == 3 * GIB


@needs_root()
def test_a_name_whose_processes_have_ended_is_free_for_another_user(daemon, client, tenant) -> None:
    node = daemon()
    one = client(uid=1000, memory="4GiB")
    assert client(uid=1001, is_refused=True).answer["status"] == 403
    one.kill()
    eventually(lambda: not node.tenant(tenant)["workers"])
    assert client(uid=1001, memory="1GiB").answer["status"] == 200
    assert node.tenant(tenant)["uid"] == 1001
    assert Path(f"/dev/shm/gpulimit.u.{tenant}").stat().st_uid == 1001


@pytest.fixture
def run(daemon_env, run_dir):
    """Run the workload by `gpulimit run` without a name; return status and stderr."""

    def start(*arguments: str, **variables: str) -> tuple[int, str]:
        workload = (sys.executable, "-m", "limiter", "load", "--launches", "5", "--memory", "0")
        command = [sys.executable, "-m", "limiter", "run", "--sim", *arguments, "--", *workload]
        env = daemon_env | {"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")} | variables
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    return start


def test_plain_runs_one_after_the_other_are_not_refused(daemon, run) -> None:
    daemon()
    for _ in range(3):
        assert run("--request", "60", "--memory", "60GiB") == (0, "")


def test_a_refused_run_says_who_holds_what_and_may_wait(daemon, client, run, tenant) -> None:
    daemon()
    one = client(request=60)
    status, stderr = run("--request", "60")
    assert status != 0
    assert "request of 60% does not fit on GPU 0, where 40% is free" in stderr
    assert f"wait with GPULIMIT_WAIT=SECONDS for {tenant} (60% since " in stderr
    waiting = subprocess.Popen(["sh", "-c", f"sleep 1.5; kill {one.process.pid}"])
    begin = time.monotonic()
    assert run("--request", "60", GPULIMIT_WAIT="50") == (0, "")
    assert 1 < time.monotonic() - begin < 30
    waiting.wait()


def test_a_process_that_waits_for_its_start_is_told_of_once(daemon, client, run) -> None:
    node = daemon()
    client(request=60)
    run("--request", "60", GPULIMIT_WAIT="2.2")
    refusals = [event for event in node.state()["events"] if event["kind"] == "refused"]
    assert len(refusals) == 1
