# SPDX-License-Identifier: Apache-2.0
"""`gpulimit status`, `quota` and `tenant`, with a daemon and without."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from limiter._native import ffi

from tests.conftest import clean_environ
from tests.daemon.conftest import eventually

GIB = 1 << 30
ROOT = Path(__file__).parents[2]
Gpulimit = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gpulimit(run_process, run_dir) -> Gpulimit:
    """Run the command line against the test's daemon, whether it runs or not."""
    env = clean_environ() | {"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")}

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "limiter", *arguments]
        return run_process(argv, env=env, cwd=ROOT, **options)

    return run


def test_quotas_are_set_and_shown_through_the_daemon(daemon, client, tenant, gpulimit) -> None:
    daemon()
    one = client()
    gpulimit("quota", "set", tenant, "--memory", "2GiB", "--request", "30", expect=0)
    (device,) = one.tell(order="look")["devices"]
    assert (device["memory_limit_bytes"], device["compute_request_percent"]) == (2 * GIB, 30)
    shown = gpulimit("quota", "show", tenant, expect=0).stdout
    assert "source    api" in shown
    assert "memory    2 GiB" in shown
    assert "request   30" in shown
    answer = json.loads(gpulimit("quota", "set", tenant, "--reset", "--json", expect=0).stdout)
    assert answer == {"tenant": tenant, "present": True, "source": "default", "quota": {}}


def test_what_cannot_be_is_refused_in_one_line(daemon, client, tenant, other_tenant, gpulimit) -> None:
    daemon()
    client(), client(other_tenant, request=60)
    for arguments, status, said in (
        (("quota", "set", tenant, "--request", "50"), 1, "where 40% is free; ask for less; held by "),
        (("quota", "set", tenant, "--memory", "4GX"), 2, '--memory: "4GX" at character 2'),
        (("quota", "set", tenant), 2, "nothing to set"),
        (("quota", "set", tenant, "--reset", "--memory", "1GiB"), 2, "--reset goes alone"),
        (("quota", "show", "nobody-here"), 1, "no tenant 'nobody-here' here"),
        (("quota", "show", "a/b"), 2, "is not a tenant's name"),
        (("tenant", "suspend", "nobody-here"), 1, "no tenant 'nobody-here' here"),
    ):
        done = gpulimit(*arguments)
        assert done.returncode == status, arguments
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_one_part_of_a_quota_is_changed_and_the_others_stay(daemon, client, tenant, gpulimit) -> None:
    daemon()
    one = client(memory="4GiB", compute=30, request=20, weight=7, priority="low")

    def limits() -> tuple[int, ...]:
        (device,) = one.tell(order="look")["devices"]
        names = "memory_limit_bytes", "compute_limit_percent", "compute_request_percent", "weight", "priority"
        return tuple(device[name] for name in names)

    gpulimit("quota", "set", tenant, "--compute", "50%", expect=0)
    assert limits() == (4 * GIB, 50, 20, 7, 1)
    gpulimit("quota", "set", tenant, "--memory", "2GiB", "--weight", "none", expect=0)
    assert limits() == (2 * GIB, 50, 20, 100, 1)
    shown = gpulimit("quota", "set", tenant, "--compute", "none", "--request", "none", expect=0).stdout
    assert limits() == (2 * GIB, 100, 0, 100, 1)
    assert "compute" not in shown
    assert "priority  low" in shown


def test_a_quota_that_no_gpu_can_hold_is_refused_with_its_size(daemon, client, tenant, gpulimit) -> None:
    daemon()
    one = client(memory="4GiB")
    for arguments, said in (
        (("--memory", "99999GiB"), "memory of 97.66 TiB is more than there is: GPU 0 with 79.65 GiB"),
        (("--memory", "0=99999GiB,*=1GiB"), "GPU 0 with 79.65 GiB"),
        (("--memory", "7=1GiB"), "no GPU '7' on this node, which has GPU 0 with 79.65 GiB"),
        (("--compute", "GPU-ffffffff=30"), "no GPU 'GPU-ffffffff' on this node"),
    ):
        done = gpulimit("quota", "set", tenant, *arguments)
        assert done.returncode == 1
        assert said in done.stderr, done.stderr
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 4 * GIB


def test_a_quota_for_a_tenant_without_processes_is_kept_and_said_so(
    daemon, client, tenant, other_tenant, gpulimit
) -> None:
    node = daemon()
    kept = "no process now; its quota is kept for its next start"
    assert kept in gpulimit("quota", "set", other_tenant, "--memory", "2GiB", expect=0).stdout
    client(memory="4GiB", compute=30).kill()
    eventually(lambda: not node.tenant(tenant)["workers"])
    assert kept in gpulimit("quota", "set", tenant, "--memory", "3GiB", expect=0).stdout
    assert client(memory="4GiB").tell(order="look")["devices"][0]["memory_limit_bytes"] == 3 * GIB
    gone = gpulimit("quota", "set", other_tenant, "--reset", expect=0).stdout
    assert "nothing is kept for its next start" in gone
    over = gpulimit("quota", "set", "run-1-2", "--memory", "1GiB")
    assert over.returncode == 1
    assert "run-1-2 has ended, and nothing will start under this name again" in over.stderr


def test_a_suspension_holds_for_processes_that_start_later(daemon, client, tenant, gpulimit) -> None:
    node = daemon(linger="0s")
    one = client()
    gpulimit("tenant", "suspend", tenant, expect=0)
    one.kill()
    eventually(lambda: node.tenant(tenant) is None)
    assert "suspended" in gpulimit("quota", "show", tenant, expect=0).stdout
    node.stop(signal.SIGKILL)
    daemon(linger="0s")
    assert client().tell(order="look")["devices"][0]["suspended"] == 1
    gpulimit("tenant", "resume", tenant, expect=0)
    assert client().tell(order="look")["devices"][0]["suspended"] == 0


def test_tenants_are_suspended_and_shown(daemon, client, tenant, gpulimit) -> None:
    node = daemon()
    one = client(memory="4GiB", weight=7)
    gpu = node.state()["gpus"][0]
    one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
    gpulimit("tenant", "suspend", tenant, expect=0)
    assert one.tell(order="look")["devices"][0]["suspended"] == 1
    answer = json.loads(gpulimit("status", "--json", "--over", "0.1", expect=0).stdout)
    (row,) = [r for r in answer["tenants"] if r["tenant"] == tenant]
    assert answer["daemon"] is True
    assert (row["source"], row["weight"], row["now"]) == ("environment", 7, "suspended")
    assert row["memory_limit_bytes"] == 4 * GIB
    shown = gpulimit("status", "--over", "0.1", expect=0).stdout
    assert "SOURCE" in shown and "suspended" in shown and "daemon: running" in shown
    gpulimit("tenant", "resume", tenant, expect=0)
    assert one.tell(order="look")["devices"][0]["suspended"] == 0


def test_without_a_daemon_the_tenant_s_own_books_are_changed(start_process, tenant, gpulimit) -> None:
    path = Path(f"/dev/shm/gpulimit.u.{tenant}")
    maker = [
        sys.executable,
        str(ROOT / "tests" / "segments.py"),
        str(path),
        '{"devices": [{}], "slots": [{}]}',
    ]
    process = start_process(maker, env=clean_environ() | {"PYTHONPATH": str(ROOT)})
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    gpulimit("quota", "set", tenant, "--memory", "50%", "--compute", "25", expect=0)
    gpulimit("tenant", "suspend", tenant, expect=0)
    usage = ffi.from_buffer("struct gl_usage *", path.read_bytes())
    device = usage.device[0]
    assert (device.memory_limit_bytes, device.compute_limit_percent, device.suspended) == (40 * GIB, 25, 1)
    shown = gpulimit("quota", "show", tenant, expect=0).stdout
    assert "40 GiB" in shown and "25%" in shown
    refused = gpulimit("quota", "set", tenant, "--request", "10", "--weight", "5")
    assert refused.returncode == 1
    assert "--request, --weight needs the daemon" in refused.stderr
    refused = gpulimit("quota", "set", tenant, "--memory", "99999GiB")
    assert refused.returncode == 1
    assert "is more than there is: GPU-" in refused.stderr and "with 80 GiB" in refused.stderr
    gpulimit("quota", "set", tenant, "--memory", "none", expect=0)
    usage = ffi.from_buffer("struct gl_usage *", path.read_bytes())
    device = usage.device[0]
    assert (device.memory_limit_bytes, device.compute_limit_percent) == (80 * GIB, 25)
    process.kill()
    process.wait()
    refused = gpulimit("quota", "set", tenant, "--memory", "1GiB")
    assert refused.returncode == 1
    assert "has no living process, and there is no daemon's socket " in refused.stderr
    assert "GPULIMIT_SOCKET names another" in gpulimit("tenant", "suspend", "nobody-here").stderr


def test_status_says_what_an_absent_daemon_means(daemon, client, tenant, gpulimit, run_dir) -> None:
    path = run_dir / "daemon.sock"
    before = gpulimit("status", expect=0).stdout
    assert f"daemon: not running: there is no socket {path}, which GPULIMIT_SOCKET names" in before
    assert "and then get no GPU" in before
    node = daemon()
    client(memory="4GiB")
    node.stop()
    after = gpulimit("status", expect=0).stdout
    assert f"daemon: not running, but its socket {path} is there" in after
    assert "and then get no GPU" in after
    assert "start it: systemctl start gpulimit" in after
    assert "each program's environment" not in after
    answer = json.loads(gpulimit("status", "--json", expect=0).stdout)
    assert (answer["daemon"], len(answer["daemon_absence"])) == (False, 2)


def test_limits_that_a_stopped_daemon_keeps_are_not_changed_to_no_effect(
    daemon, client, tenant, gpulimit
) -> None:
    node = daemon()
    one = client(memory="4GiB")
    one.tell(order="device", gpu=node.state()["gpus"][0]["uuid"], card_bytes=80 * GIB)
    node.stop()
    for arguments in (("quota", "set", tenant, "--memory", "1GiB"), ("tenant", "suspend", tenant)):
        done = gpulimit(*arguments)
        assert done.returncode == 1
        assert "no daemon listens on" in done.stderr and "start it first" in done.stderr
    assert one.tell(order="look")["devices"][0]["memory_limit_bytes"] == 4 * GIB


def test_the_two_limits_in_status_have_their_own_names(daemon, client, tenant, gpulimit) -> None:
    node = daemon()
    one = client(memory="4GiB", compute="30%")
    one.tell(order="device", gpu=node.state()["gpus"][0]["uuid"], card_bytes=80 * GIB)
    heading = gpulimit("status", "--over", "0", expect=0).stdout.splitlines()[0]
    assert heading.count("MEM LIMIT") == heading.count("TIME LIMIT") == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("200 OK\r\nContent-Length: 5\r\n\r\nhello", "is no daemon of gpulimit"),
        ("405 No\r\nContent-Length: 23\r\n\r\n405: Method Not Allowed\n", "of an older version"),
        ("500 No\r\nContent-Length: 9\r\n\r\nBroken.\n\n", "Broken."),
        ("500 No\r\nContent-Length: 0\r\n\r\n", "the daemon answered 500"),
    ],
)
def test_an_answer_that_is_not_json_is_one_line(run_dir, tenant, gpulimit, answer: str, said: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "daemon.sock"))
        listener.listen()
        listener.settimeout(20)

        def serve() -> None:
            with listener.accept()[0] as client:
                client.sendall(f"HTTP/1.1 {answer}".encode())
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        done = gpulimit("quota", "set", tenant, "--memory", "1GiB")
        thread.join()
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_daemon_that_does_not_answer_is_said_so(run_dir, gpulimit, tenant) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "daemon.sock"))
        listener.listen()
        listener.settimeout(10)

        def close_at_once() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=close_at_once)
        thread.start()
        done = gpulimit("quota", "show", tenant)
        thread.join()
    assert done.returncode == 1
    assert done.stderr.startswith("gpulimit: ")
    assert "Traceback" not in done.stderr
