# SPDX-License-Identifier: Apache-2.0
"""Operators' calls: quotas changed while programs run, suspending, commands, health, TCP, SIGHUP."""

from __future__ import annotations

import http.client
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from limiter._native import lib

from tests.daemon.conftest import Daemon, eventually

GIB = 1 << 30


def only_device(client: Any) -> dict[str, Any]:
    (device,) = client.tell(order="look")["devices"]
    return dict(device)


def test_a_quota_change_reaches_the_tenant_within_100_ms(daemon, client, tenant) -> None:
    node = daemon()
    one = client(memory="4GiB", compute=30)
    before = only_device(one)
    begin = time.monotonic()
    status, _, answer = node.ask(
        "PUT", f"/v1/tenants/{tenant}/quota", {"memory": "2GiB", "compute": 50, "request": 10}
    )
    assert (status, answer["source"]) == (200, "api")
    device = eventually(lambda: (d := only_device(one))["memory_limit_bytes"] == 2 * GIB and d, within_s=0.1)
    assert time.monotonic() - begin < 0.1
    assert (device["compute_limit_percent"], device["compute_request_percent"]) == (50, 10)
    assert device["change"] != before["change"]
    assert one.tell(order="commands")["command"].endswith(" refresh")


def test_a_quota_set_before_the_tenant_is_there_waits_for_it(daemon, client, tenant) -> None:
    node = daemon()
    target = f"/v1/tenants/{tenant}/quota"
    assert node.ask("GET", target)[0] == 404
    assert node.ask("PUT", target, {"memory": "2GiB"})[2] == {
        "tenant": tenant,
        "present": False,
        "source": "api",
        "quota": {"memory": f"*={2 * GIB}B"},
    }
    one = client(memory="8GiB")
    assert one.answer["source"] == "api"
    assert only_device(one)["memory_limit_bytes"] == 2 * GIB
    status, _, answer = node.ask("DELETE", target)
    assert (status, answer["source"]) == (200, "environment")
    assert only_device(one)["memory_limit_bytes"] == 8 * GIB


def test_a_quota_that_does_not_fit_changes_nothing(daemon, client, tenant, other_tenant) -> None:
    node = daemon()
    one, _ = client(memory="1GiB"), client(other_tenant, request=40)
    status, _, answer = node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"request": 70})
    assert status == 409
    assert "where 60% is free; ask for less; held by " + other_tenant in answer["error"]
    assert only_device(one)["compute_request_percent"] == 0
    assert node.tenant(tenant)["source"] == "environment"


NO_QUOTAS = (
    {"memroy": "1GiB"},
    {"memory": "1GX"},
    {"compute": 200},
    {"request": True},
    {"weight": [1]},
    {"tenant": "b"},
    {"MEMORY": "1GiB"},
    [],
    b"x",
)


def test_a_quota_that_cannot_be_read_changes_nothing(daemon, client, tenant) -> None:
    node = daemon()
    client(memory="1GiB")
    for body in NO_QUOTAS:
        status, _, answer = node.ask("PUT", f"/v1/tenants/{tenant}/quota", body)
        assert status == 422, body
        assert answer["error"]
    assert node.tenant(tenant)["source"] == "environment"


def test_a_patch_names_the_parts_that_change(daemon, client, tenant) -> None:
    node = daemon()
    client(memory="1GiB", compute=30)
    target = f"/v1/tenants/{tenant}/quota"
    for body in (*NO_QUOTAS, {"memroy": None}, {"memory": "1GiB", "tenant": None}):
        assert node.ask("PATCH", target, body)[0] == 422, body
    assert node.tenant(tenant)["source"] == "environment"
    status, _, answer = node.ask("PATCH", target, {"request": 60})
    assert status == 422
    assert "more than the compute limit" in answer["error"]
    assert node.tenant(tenant)["source"] == "environment"
    answer = node.ask("PATCH", target, {"memory": None, "request": 10})[2]
    assert (answer["source"], answer["quota"]) == ("api", {"compute": "*=30", "request": "10"})
    assert node.ask("PUT", target, {"weight": 5})[2]["quota"] == {"weight": "5"}  # the whole of it


def test_suspend_and_resume(daemon, client, tenant) -> None:
    node = daemon()
    one = client()
    assert node.ask("POST", f"/v1/tenants/{tenant}/suspend")[0] == 204
    assert only_device(one)["suspended"] == 1
    command = one.tell(order="commands")["command"]
    number, name = command.split()
    assert name == "suspend"
    assert one.tell(order="commands")["command"] == command  # at least once: until it is acknowledged
    assert one.tell(order="result", number=int(number), ok=True)["status"] == 204
    assert one.tell(order="commands", after=int(number))["status"] == 204
    assert client().tell(order="look")["devices"][0]["suspended"] == 1  # also for who comes later
    assert node.ask("POST", f"/v1/tenants/{tenant}/resume")[0] == 204
    assert only_device(one)["suspended"] == 0
    assert one.tell(order="commands", after=int(number))["command"].endswith(" resume")
    assert node.ask("POST", "/v1/tenants/nobody/suspend")[0] == 404


def test_a_waiting_question_is_answered_when_a_command_comes(daemon, client, tenant) -> None:
    node = daemon()
    one = client()
    assert one.process.stdin is not None and one.process.stdout is not None
    one.process.stdin.write(json.dumps({"order": "commands", "wait": 20}) + "\n")
    one.process.stdin.flush()
    time.sleep(0.2)
    begin = time.monotonic()
    node.ask("POST", f"/v1/tenants/{tenant}/suspend")
    assert json.loads(one.process.stdout.readline())["command"].endswith(" suspend")
    assert time.monotonic() - begin < 0.5


def test_a_question_without_an_answer_ends_in_time(daemon, client) -> None:
    daemon()
    begin = time.monotonic()
    assert client().tell(order="commands", wait=1)["status"] == 204
    assert 0.9 < time.monotonic() - begin < 5


def get(node: Daemon, target: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.metrics_port, timeout=5)
    connection.request("GET", target)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_health_and_metrics(daemon, client) -> None:
    node = daemon()
    client()
    assert get(node, "/healthz") == (200, "ok\n")
    assert get(node, "/readyz") == (200, "ok\n")
    status, text = get(node, "/metrics")
    assert status == 200
    assert "gpulimit_" in text
    assert get(node, "/v1/state")[0] == 404


def test_the_daemon_is_alive_but_not_ready_without_nvml(daemon, client, tmp_path, tenant) -> None:
    node = daemon(is_awaited=False, env={"GPULIMIT_LIB_DIR": str(broken_driver(tmp_path))})
    eventually(lambda: Path(node.socket).exists())
    eventually(lambda: "nvmlInit" in get(node, "/readyz")[1])
    assert get(node, "/healthz")[0] == 200
    assert get(node, "/readyz")[0] == 503
    refused = client(is_refused=True)
    assert refused.answer["status"] == 503
    assert "NVML has not answered" in refused.answer["error"]


def broken_driver(tmp_path: Path) -> Path:
    folder = tmp_path / "broken" / "sim"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").touch()
    (folder / "libnvidia-ml.so.1").touch()
    return folder.parent


def test_sighup_rereads_quotas(daemon, client, tenant, tmp_path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[tenants."{tenant}"]\nmemory = "1GiB"\n')
    node = daemon("--config", str(path))
    one = client(memory="8GiB")
    assert one.answer["source"] == "config"
    path.write_text(f'[tenants."{tenant}"]\nmemory = "2GiB"\n')
    node.process.send_signal(signal.SIGHUP)
    eventually(lambda: only_device(one)["memory_limit_bytes"] == 2 * GIB, within_s=2)
    path.write_text("[tenants.x]\nmemroy = 3\n")
    node.process.send_signal(signal.SIGHUP)
    eventually(lambda: node.state()["counts"].get("config_refused"), within_s=2)
    assert only_device(one)["memory_limit_bytes"] == 2 * GIB


def test_operators_over_tcp_need_their_token_and_cannot_register(daemon, client, tenant, tmp_path) -> None:
    from tests.daemon.conftest import free_port

    token = tmp_path / "token"
    token.write_text("secret-secret-secret\n")
    token.chmod(0o600)
    port = free_port()
    daemon(tcp_addr=f"127.0.0.1:{port}", tcp_token_file=str(token))
    client(memory="1GiB")

    def ask(method: str, target: str, given: str | None, body: object = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        connection.request(method, target, body and json.dumps(body), headers)
        status = connection.getresponse().status
        connection.close()
        return status

    right = "secret-secret-secret"
    assert [ask("GET", "/v1/state", t) for t in (None, "wrong", right)] == [401, 401, 200]
    assert ask("PUT", f"/v1/tenants/{tenant}/quota", right, {"memory": "2GiB"}) == 200
    assert ask("POST", "/v1/workers", right, {"version": lib.GL_LAYOUT_VERSION}) == 403
    assert ask("GET", "/v1/workers/x/commands", right) == 403


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"quantum": "1h"}, "--quantum: '1h'"),
        ({"metrics_addr": "nowhere.invalid:1"}, "cannot listen on nowhere.invalid:1"),
        ({"socket": "/proc/x/y.sock"}, "socket: /proc/x/y.sock"),
        ({"socket_group": "no-such-group"}, "socket_group: no group"),
    ],
)
def test_a_daemon_that_cannot_start_says_why_in_one_line(daemon, options, expected) -> None:
    node = daemon(is_awaited=False, **options)
    assert node.process.wait(timeout=10) == 2
    said = [line for line in node.log.read_text().splitlines() if line.startswith("gpulimit daemon:")]
    assert len(said) == 1
    assert expected in said[0]


def test_a_second_daemon_on_the_node_refuses(daemon) -> None:
    first = daemon()
    second = daemon(is_awaited=False)
    assert second.process.wait(timeout=10) != 0
    assert "another daemon of this node is running" in second.log.read_text()
    assert first.state()["gpus"]
