# SPDX-License-Identifier: Apache-2.0
"""Real processes register with a real daemon, come under quota, and die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from limiter._native import lib

from hypervisor.node.worker_commands import end_of_wait
from tests.daemon.conftest import ask, eventually, needs_root

MIB, GIB = 1 << 20, 1 << 30


def test_a_process_registers_and_finds_its_limits_published(daemon, client, tenant) -> None:
    node = daemon()
    one = client(memory="4GiB", compute=30, request=20, weight=7, priority="low")
    assert one.answer["tenant"] == tenant
    assert one.answer["source"] == "environment"
    assert int(one.answer["host-pid"]) == one.process.pid
    gpu = node.state()["gpus"][0]
    (device,) = one.tell(order="look")["devices"]
    assert device["uuid"] == gpu["uuid"]
    assert device["memory_limit_bytes"] == 4 * GIB
    assert (device["compute_limit_percent"], device["compute_request_percent"]) == (30, 20)
    assert (device["weight"], device["priority"], device["suspended"]) == (7, 1, 0)
    assert one.tell(order="look")["heartbeat_ns"] > 0
    shown = node.tenant(tenant)
    assert [w["host_pid"] for w in shown["workers"]] == [one.process.pid]


def test_registering_again_gives_the_same_worker(daemon, client, tenant) -> None:
    daemon()
    one = client()
    again = one.tell(order="register", tenant=tenant, environment={})
    assert again["worker"] == one.answer["worker"]


def test_memory_of_a_killed_process_is_given_back_at_once(daemon, client, tenant) -> None:
    node = daemon()
    gpu = node.state()["gpus"][0]
    survivor, victim = client(memory="4GiB"), client()
    for one in (survivor, victim):
        one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
    assert victim.tell(order="reserve", size=3 * GIB, limit=4 * GIB)["result"] == 0
    assert survivor.tell(order="reserve", size=2 * GIB, limit=4 * GIB)["result"] != 0
    victim.kill()
    eventually(lambda: survivor.tell(order="reserve", size=2 * GIB, limit=4 * GIB)["result"] == 0, within_s=1)
    assert len(node.tenant(tenant)["workers"]) == 1
    assert node.state()["counts"]["slots_cleared"] == 1


def test_a_refused_process_hears_why_in_header_and_body(daemon, client, other_tenant) -> None:
    daemon()
    client(request=70)
    refused = client(other_tenant, is_refused=True, request=40)
    assert refused.answer["status"] == 409
    assert "request of 40% does not fit" in refused.answer["error"]
    assert json.loads(refused.answer["body"])["error"] == refused.answer["error"]


def test_a_quota_that_cannot_be_read_is_refused(daemon, client) -> None:
    daemon()
    refused = client(is_refused=True, memory="4GX")
    assert refused.answer["status"] == 422
    assert 'GPULIMIT_MEMORY: "4GX" at character 2' in refused.answer["error"]


@needs_root()
def test_another_user_cannot_join_a_tenant_nor_read_its_books(daemon, client, tenant) -> None:
    node = daemon()
    owner = client(uid=1000)
    assert client(uid=1001, is_refused=True).answer["status"] == 403
    book = Path(f"/dev/shm/gpulimit.u.{tenant}").stat()
    assert (book.st_uid, book.st_mode & 0o777) == (1000, 0o600)
    policy = Path(f"/dev/shm/gpulimit.p.{tenant}").stat()
    assert (policy.st_uid, policy.st_mode & 0o777) == (0, 0o644)
    assert owner.tell(order="look")["devices"]
    stranger = client("auto", uid=1001, is_refused=True)
    for target in (f"/v1/tenants/{tenant}/quota", "/v1/state"):
        answer = stranger.tell(order="raw", method="GET", target=target)
        assert tenant not in answer["body"] or answer["status"] == 403
    assert node.tenant("auto") is not None
    node.ask("PUT", "/v1/tenants/auto/quota", {})


@needs_root()
def test_a_tenant_cannot_change_quotas(daemon, client, tenant) -> None:
    node = daemon()
    one = client(uid=1000, memory="1GiB")
    for method, what, body in (
        ("PUT", "quota", {"memory": "64GiB"}),
        ("DELETE", "quota", None),
        ("POST", "suspend", None),
        ("POST", "resume", None),
    ):
        answer = one.tell(order="raw", method=method, target=f"/v1/tenants/{tenant}/{what}", body=body)
        assert answer["status"] == 403, (method, what)
    assert node.tenant(tenant)["quota"] == {"memory": f"*={GIB}B"}


def test_the_pid_of_another_process_s_worker_is_of_no_use(daemon, client, other_tenant) -> None:
    node = daemon()
    one = client()
    target = f"/v1/workers/{one.answer['worker']}"
    assert node.ask("GET", f"{target}/commands?after=0&wait=0")[0] == 403
    assert node.ask("POST", f"{target}/results", {"number": 1, "ok": True})[0] == 403


def test_a_tenant_that_all_have_left_is_forgotten(daemon, client, tenant) -> None:
    node = daemon(linger="0s")
    one = client()
    assert Path(f"/dev/shm/gpulimit.u.{tenant}").exists()
    one.kill()
    eventually(lambda: node.tenant(tenant) is None, within_s=5)
    assert not Path(f"/dev/shm/gpulimit.u.{tenant}").exists()
    assert not Path(f"/dev/shm/gpulimit.p.{tenant}").exists()
    again = client(memory="1GiB")
    assert again.tell(order="look")["devices"][0]["memory_limit_bytes"] == GIB


def test_a_forked_child_is_a_worker_of_its_own(daemon, tmp_path, tenant) -> None:
    node = daemon()
    program = (
        "import os,sys;sys.path.insert(0,sys.argv[2]);from tests.daemon.client import Client\n"
        "def go():\n c=Client(sys.argv[1]); return c.register(sys.argv[3],{})['worker']\n"
        "mine=go(); r,w=os.pipe()\n"
        "if os.fork()==0: os.write(w,go().encode()); os._exit(0)\n"
        "os.close(w); print(mine, os.read(r,100).decode()); os.wait()\n"
    )
    argv = [sys.executable, "-c", program, node.socket, str(Path(__file__).parents[2]), tenant]
    out = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    assert len(set(out)) == 2


RIGHT = b'{"version": %d, ' % lib.GL_LAYOUT_VERSION
NONSENSE = (
    (b"", 422),
    (b"nonsense", 422),
    (b"[]", 422),
    (b"[" * 50_000, 422),
    (b'{"version": %d}' % (lib.GL_LAYOUT_VERSION + 1), 422),
    (RIGHT + b'"environment": {"GPULIMIT_MEMORY": 3}}', 422),
    (RIGHT + b'"environment": []}', 422),
    (RIGHT + b'"name": 3}', 422),
    (RIGHT + b'"tenant": "../../etc"}', 422),
    (RIGHT + b'"tenant": "' + b"x" * 300 + b'"}', 422),
    (RIGHT + b'"name": "' + b"x" * 70_000 + b'"}', 413),
    (b"\xff\xfe{}", 422),
)


def test_nonsense_is_refused_and_the_daemon_goes_on(daemon) -> None:
    node = daemon()
    for body, status in NONSENSE:
        assert node.ask("POST", "/v1/workers", body)[0] == status, body[:80]
    assert node.state()["tenants"] == []


def test_registration_needs_no_more_than_the_version(daemon) -> None:
    node = daemon()
    status, headers, _ = node.ask("POST", "/v1/workers", {"version": lib.GL_LAYOUT_VERSION})
    assert status == 200
    assert headers["gpulimit-tenant"].startswith(f"auto-{os.geteuid()}-")
    name = headers["gpulimit-tenant"]
    for path in Path("/dev/shm").glob(f"gpulimit.?.{name}"):
        path.unlink(missing_ok=True)


def test_good_clients_do_not_notice_bad_ones(daemon, client) -> None:
    import socket

    node = daemon()
    one = client()
    bad = []
    for text in (b"", b"POST /v1/workers HTTP/1.1\r\nContent-Le", b"\x00" * 4096, b"GET / HTTP/9.9\r\n\r\n"):
        for _ in range(20):
            stuck = socket.socket(socket.AF_UNIX)
            stuck.connect(node.socket)
            stuck.sendall(text)
            bad.append(stuck)
    assert one.tell(order="commands")["status"] == 204
    for _ in range(10):
        assert ask(node.socket, "GET", "/v1/state")[0] == 200
    for stuck in bad:
        stuck.close()


def test_long_waits_end_together_and_never_late() -> None:
    ends = {end_of_wait(100.0 + n / 10, 25) for n in range(10)}
    assert ends == {125.0}
    assert end_of_wait(100.9, 1.5) == pytest.approx(102.4)
