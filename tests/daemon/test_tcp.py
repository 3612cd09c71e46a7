# SPDX-License-Identifier: Apache-2.0
"""Registering over TCP: who bears the token and really is the process that it says it is."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypervisor.api.server import VERSION
from hypervisor.errors import Refused
from hypervisor.host import process_files
from hypervisor.host import tcp_peer as connections
from hypervisor.host.tcp_endpoints import TcpEndpoints
from tests.conftest import Built, StartProcess, clean_environ
from tests.daemon.conftest import Daemon, eventually, free_port, needs_root

OPERATORS, PROCESSES = "operators-secret-0001", "processes-secret-001"
ALLOWED, UNKNOWN, FORBIDDEN = 200, 401, 403


@dataclass
class Node:
    daemon: Daemon
    port: int
    register_token: Path


@pytest.fixture
def node(daemon: Callable[..., Daemon], tmp_path: Path) -> Callable[..., Node]:
    """Start daemons that take registrations over TCP."""
    port = free_port()
    paths = [tmp_path / name for name in ("operators", "processes")]
    for path, token in zip(paths, (OPERATORS, PROCESSES), strict=True):
        path.write_text(token + "\n")
        path.chmod(0o600)

    def start(**options: str) -> Node:
        files = {"tcp_token_file": str(paths[0]), "tcp_register_token_file": str(paths[1])}
        return Node(daemon(tcp_addr=f"127.0.0.1:{port}", **(files | options)), port, paths[1])

    return start


def ask(
    port: int, method: str, target: str, body: object = None, token: str | None = PROCESSES
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, target, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def said(tenant: str, pid: int, ticks: int) -> dict[str, Any]:
    return {
        "version": VERSION,
        "pid": pid,
        "start_ticks": ticks,
        "name": "test",
        "tenant": tenant,
        "environment": {"GPULIMIT_MEMORY": "1GiB"},
        "files": True,
    }


def ticks_of(pid: int) -> int:
    return process_files.stat_of(pid).start_ticks


def test_a_process_registers_and_is_who_it_is(node, tenant) -> None:
    here = node()
    me = said(tenant, os.getpid(), ticks_of(os.getpid()))
    status, answer = ask(here.port, "POST", "/v1/workers", me)
    assert status == ALLOWED
    assert (answer["host_pid"], answer["tenant"]) == (str(os.getpid()), tenant)
    worker = answer["worker"]
    assert ask(here.port, "GET", f"/v1/workers/{worker}/commands")[0] == 204
    here.daemon.ask("POST", f"/v1/tenants/{tenant}/suspend")
    status, answer = ask(here.port, "GET", f"/v1/workers/{worker}/commands?wait=5")
    assert answer["commands"][0]["name"] == "suspend"
    result = {"number": answer["commands"][0]["number"], "ok": True, "message": ""}
    assert ask(here.port, "POST", f"/v1/workers/{worker}/results", result)[0] == 204
    assert ask(here.port, "GET", "/v1/workers/nobody/commands")[0] == 404


def test_nobody_registers_as_another_or_takes_its_commands(node, tenant, client) -> None:
    here = node()
    other = client()
    pid = other.process.pid
    status, answer = ask(here.port, "POST", "/v1/workers", said(tenant, pid, ticks_of(pid)))
    assert status == FORBIDDEN
    assert "did not make this connection" in answer["error"]
    status, answer = ask(here.port, "POST", "/v1/workers", said(tenant, os.getpid(), 1))
    assert status == FORBIDDEN
    assert "no process of this node has pid" in answer["error"]
    worker = other.answer["worker"]
    assert ask(here.port, "GET", f"/v1/workers/{worker}/commands")[0] == FORBIDDEN
    assert ask(here.port, "POST", f"/v1/workers/{worker}/results", {"number": 1, "ok": True})[0] == FORBIDDEN


def test_each_token_opens_its_own_calls_only(node, tenant) -> None:
    here = node()
    me = said(tenant, os.getpid(), ticks_of(os.getpid()))
    register, state = ("POST", "/v1/workers", me), ("GET", "/v1/state", None)
    tokens = (
        None,
        "",
        "wrong",
        PROCESSES[:-1],
        PROCESSES + "x",
        "\udcff\udcfe".encode("latin-1", "ignore").decode(),
    )
    for token in tokens:
        assert ask(here.port, *register, token=token)[0] == UNKNOWN
        assert ask(here.port, *state, token=token)[0] == UNKNOWN
    assert ask(here.port, *register, token=OPERATORS)[0] == UNKNOWN
    assert ask(here.port, *state, token=PROCESSES)[0] == UNKNOWN
    assert ask(here.port, "PUT", f"/v1/tenants/{tenant}/quota", {"memory": "1GiB"})[0] == UNKNOWN
    assert ask(here.port, *state, token=OPERATORS)[0] == ALLOWED


def test_without_a_token_of_its_own_registering_is_off(node, tenant, tmp_path) -> None:
    here = node(tcp_register_token_file="")
    me = said(tenant, os.getpid(), ticks_of(os.getpid()))
    for token in (OPERATORS, PROCESSES, "Bearer"):
        assert ask(here.port, "POST", "/v1/workers", me, token=token)[0] == FORBIDDEN


def test_processes_with_the_operators_token_are_a_mistake(node, tmp_path) -> None:
    with pytest.raises(pytest.fail.Exception, match="processes must not be operators"):
        node(tcp_register_token_file=str(tmp_path / "operators"))


@pytest.mark.parametrize("token", ["x" * 256, "two words of one token"])
def test_a_token_that_the_library_cannot_show_is_a_mistake(node, tmp_path, token: str) -> None:
    path = tmp_path / "long"
    path.write_text(token)
    path.chmod(0o600)
    with pytest.raises(pytest.fail.Exception, match="16 to 255 visible ASCII characters"):
        node(tcp_register_token_file=str(path))


@needs_root()
@pytest.mark.skipif(shutil.which("unshare") is None, reason="not installed: unshare")
def test_a_process_in_a_pid_namespace_is_found_by_the_pid_that_it_has_there(
    node, tenant, start_process
) -> None:
    here = node()
    program = f"""
import http.client, json, os
text = open("/proc/self/stat").read().rpartition(")")[2].split()
body = {said(tenant, 0, 0)!r} | {{"pid": os.getpid(), "start_ticks": int(text[19])}}
c = http.client.HTTPConnection("127.0.0.1", {here.port})
c.request("POST", "/v1/workers", json.dumps(body), {{"Authorization": "Bearer {PROCESSES}"}})
print(os.getpid(), c.getresponse().read().decode(), flush=True)
input()
"""
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program]
    inside = start_process(argv, env=clean_environ(), stdin=subprocess.PIPE)
    line = inside.stdout.readline()
    if not line:
        pytest.skip(f"no pid namespaces here: {inside.stderr.read()}")
    own, _, answer = line.partition(" ")
    host_pid = int(json.loads(answer)["host_pid"])
    assert own == "1"
    assert host_pid != 1
    assert (Path("/proc") / str(host_pid) / "status").read_text().split("NSpid:")[1].split("\n")[
        0
    ].split() == [
        str(host_pid),
        "1",
    ]
    assert [w["host_pid"] for w in here.daemon.tenant(tenant)["workers"]] == [host_pid]


# ---- looking for the caller ----

ENDS = TcpEndpoints(("10.1.0.5", 40000), ("10.0.0.1", 9000))
TABLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def lay(
    proc: Path,
    number: int,
    nspid: str,
    ticks: int,
    *,
    inode: int = 7,
    held: int = 7,
    state="01",
    uids="1000\t1000\t1000\t1000",
    maker: int = 1000,
) -> None:
    """Put a process into a made-up /proc."""
    folder = proc / str(number)
    (folder / "net").mkdir(parents=True)
    (folder / "fd").mkdir()
    status = f"Name:\tx\nUid:\t{uids}\nGid:\t5\t6\t7\t8\nGroups:\t9 10\nNSpid:\t{nspid}\n"
    (folder / "status").write_text(status)
    (folder / "stat").write_text(f"{number} (a ) b) S " + "0 " * 18 + f"{ticks} 0\n")
    zeros = "00000000:00000000 00:00000000 00000000"
    line = f"   0: 0500010A:9C40 0100000A:2328 {state} {zeros}  {maker}        0 {inode} 1\n"
    (folder / "net" / "tcp").write_text(TABLE + line)
    (folder / "fd" / "3").symlink_to(f"socket:[{held}]")


def find(ends: TcpEndpoints, proc: Path) -> int:
    return connections.find(ends, 7, 5000, connections.SocketHolders(proc), proc)


def test_the_caller_has_pid_start_time_and_the_other_end(tmp_path) -> None:
    lay(tmp_path, 100, "100 7", 5000)
    lay(tmp_path, 101, "101 7", 5001, held=8)
    lay(tmp_path, 102, "102 8", 5000, held=8)
    (tmp_path / "103").mkdir()  # just gone
    (tmp_path / "self").mkdir()
    assert find(ENDS, tmp_path) == 100
    assert connections.holds(100, ENDS, tmp_path)
    assert not connections.holds(101, TcpEndpoints(ENDS.peer, ENDS.peer), tmp_path)


@pytest.mark.parametrize(
    ("uids", "maker"),
    [("0\t0\t0\t0", 1000), ("1000\t0\t0\t0", 1000), ("1000\t0\t0\t0", 0), ("1000\t1000\t0\t1000", 1000)],
)
def test_a_connection_that_a_program_of_another_user_was_left_with_is_not_its_own(
    tmp_path, uids, maker
) -> None:
    lay(tmp_path, 100, "100 7", 5000, uids=uids, maker=maker)
    with pytest.raises(Refused, match="another user") as refusal:
        find(ENDS, tmp_path)
    assert refusal.value.status == FORBIDDEN
    assert not connections.holds(100, ENDS, tmp_path)


def test_a_connection_that_two_processes_hold_is_neithers(tmp_path) -> None:
    lay(tmp_path, 100, "100 7", 5000)
    lay(tmp_path, 102, "102 8", 4000)
    with pytest.raises(Refused, match="process 102 holds this connection too") as refusal:
        find(ENDS, tmp_path)
    assert refusal.value.status == 503, "a forked child may be about to run its program: worth another try"


@pytest.mark.parametrize("changed", [{"held": 8}, {"inode": 9}, {"state": "06"}])
def test_who_does_not_hold_the_connection_is_not_the_caller(tmp_path, changed) -> None:
    lay(tmp_path, 100, "100 7", 5000, **changed)
    with pytest.raises(Refused, match="did not make this connection") as refusal:
        find(ENDS, tmp_path)
    assert refusal.value.status == FORBIDDEN


@pytest.mark.parametrize(
    "ends",
    [
        TcpEndpoints(("10.1.0.6", 40000), ENDS.own),
        TcpEndpoints(("10.1.0.5", 40001), ENDS.own),
        TcpEndpoints(ENDS.peer, ENDS.peer),
    ],
)
def test_another_connection_of_the_process_does_not_count(tmp_path, ends) -> None:
    lay(tmp_path, 100, "100 7", 5000)
    with pytest.raises(Refused, match="addresses are translated"):
        find(ends, tmp_path)


def test_two_who_could_be_the_caller_are_both_refused(tmp_path) -> None:
    lay(tmp_path, 100, "100 7", 5000)
    lay(tmp_path, 200, "200 7", 5000)
    with pytest.raises(Refused, match="ambiguous") as refusal:
        find(ENDS, tmp_path)
    assert refusal.value.status == 409


def test_callers_who_ask_together_are_served_by_few_looks(tmp_path, monkeypatch) -> None:
    """A look reads all descriptors of all processes; it counts for callers that were there before it."""
    lay(tmp_path, 100, "100 7", 5000)
    holders = connections.SocketHolders(tmp_path)
    began, real = [], holders._look

    def slow() -> dict[str, list[int]]:
        began.append(time.monotonic())
        time.sleep(0.2)
        return real()

    monkeypatch.setattr(holders, "_look", slow)
    held = connections.TcpSocket(7, 1000)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: holders.of(held), range(16))) == [[100]] * 16
    assert len(began) <= 4
    at = time.monotonic()
    assert holders.of(held) == [100]
    assert began[-1] >= at, "an old look does not tell who holds it now"


def test_ipv6_and_ipv4_in_ipv6_are_read_as_the_kernel_writes_them() -> None:
    assert connections.endpoint("0100007F:1F90") == ("127.0.0.1", 8080)
    assert connections.endpoint("0000000000000000FFFF00000100007F:0050") == ("127.0.0.1", 80)
    assert connections.endpoint("00000000000000000000000001000000:0001") == ("::1", 1)
    assert connections.endpoint("nonsense") == ("", 0)
    assert TcpEndpoints.of(("fe80::1%eth0", 1, 0, 2), ("::ffff:1.2.3.4", 2, 0, 0)) == TcpEndpoints(
        ("fe80::1", 1), ("1.2.3.4", 2)
    )
    assert TcpEndpoints.of("", "/run/x.sock") is None
    assert TcpEndpoints.of(None, None) is None


def test_no_nonsense_ends_the_daemon(node, tenant) -> None:
    here = node()
    made = random.Random(7)  # noqa: S311
    good = json.dumps(said(tenant, os.getpid(), ticks_of(os.getpid()))).encode()
    head = f"POST /v1/workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {PROCESSES}\r\nContent-Length: "
    for number in range(150):
        body = bytearray(good)
        for _ in range(made.randrange(1, 6)):
            body[made.randrange(len(body))] = made.randrange(256)
        request = head.encode() + f"{len(body)}\r\n\r\n".encode() + body
        if number % 3 == 0:
            request = request[: made.randrange(len(request))] + made.randbytes(made.randrange(40))
        with socket.create_connection(("127.0.0.1", here.port), timeout=5) as raw:
            raw.sendall(request)
            raw.shutdown(socket.SHUT_WR)
            raw.recv(1 << 16)
    for body in (
        [],
        {"version": VERSION, "pid": -1},
        {"version": VERSION, "pid": "1", "start_ticks": [2]},
        {"version": VERSION},
    ):
        assert ask(here.port, "POST", "/v1/workers", body)[0] in (403, 422)
    big = b'{"name": "' + b"x" * (1 << 20) + b'"}'
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=5)
    try:
        connection.request("POST", "/v1/workers", big, {"Authorization": f"Bearer {PROCESSES}"})
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up before all of it was sent
    finally:
        connection.close()
    assert here.daemon.state()["gpus"]


# ---- the library ----


@pytest.fixture
def load(built: Built, daemon_env: dict[str, str], start_process: StartProcess) -> Callable[..., Any]:
    def start(tenant: str, seconds: float, **more: str) -> subprocess.Popen[str]:
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(built.sim),
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_TENANT": tenant,
            "GPULIMIT_MEMORY": "2GiB",
            "GPULIMIT_COMPUTE": "50",
            "GPULIMIT_WAIT": "5",
            "POD_NAME": "pod",
            "POD_NAMESPACE": "space",
            "HYPERVISOR_IP": "127.0.0.1",
            **more,
        }
        argv = [sys.executable, "-P", "-m", "limiter", "load", "--json", "--seconds", str(seconds)]
        return start_process(argv, env=env)

    return start


needs_no_usual_socket = pytest.mark.skipif(
    Path("/run/gpulimit/hypervisor.sock").exists(), reason="a daemon runs on this machine"
)


@needs_no_usual_socket
def test_the_library_registers_over_tcp_and_again_after_a_restart(node, load, tenant) -> None:
    here = node()
    program = load(tenant, 6, HYPERVISOR_PORT=str(here.port), GPULIMIT_TOKEN_FILE=str(here.register_token))
    shown = eventually(lambda: (t := here.daemon.tenant(tenant)) and t["workers"] and t, within_s=10)
    assert [w["host_pid"] for w in shown["workers"]] == [program.pid]
    assert shown["pod"] == "", "what a process says of its pod is not shown"
    assert shown["gpus"][0]["memory_limit_bytes"] == 2 << 30
    here.daemon.stop(signal.SIGKILL)
    time.sleep(0.5)
    again = node().daemon
    eventually(lambda: (t := again.tenant(tenant)) and t["workers"], within_s=5)
    out, err = program.communicate(timeout=30)
    assert program.returncode == 0, err
    assert json.loads(out)["gpu_share"] < 0.6


@needs_no_usual_socket
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "HYPERVISOR_IP needs a token"),
        ({"GPULIMIT_TOKEN": "short"}, "GPULIMIT_TOKEN: a token is of 16 to 255"),
        ({"GPULIMIT_TOKEN": "wrong-wrong-wrong-wrong"}, "this call needs the token"),
        ({"GPULIMIT_TOKEN_FILE": "/nowhere/token"}, "/nowhere/token: No such file"),
        ({"GPULIMIT_TOKEN": PROCESSES, "HYPERVISOR_IP": "localhost"}, "is not an IP address and a port"),
        ({"GPULIMIT_TOKEN": PROCESSES, "HYPERVISOR_PORT": "0"}, "is not an IP address and a port"),
    ],
)
def test_what_the_library_cannot_use_is_said_and_nothing_goes(node, load, tenant, more, expected) -> None:
    here = node()
    program = load(tenant, 1, **({"HYPERVISOR_PORT": str(here.port)} | more))
    _, err = program.communicate(timeout=30)
    assert program.returncode != 0
    assert expected in err
    assert here.daemon.tenant(tenant) is None


@needs_no_usual_socket
def test_a_port_where_nobody_listens_counts_as_a_daemon_that_is_away(load, tenant) -> None:
    program = load(tenant, 1, HYPERVISOR_PORT=str(free_port()), GPULIMIT_TOKEN=PROCESSES, GPULIMIT_WAIT="1")
    _, err = program.communicate(timeout=30)
    assert program.returncode != 0
    assert "does not answer" in err
    one = load(
        tenant, 1, HYPERVISOR_PORT=str(free_port()), GPULIMIT_TOKEN=PROCESSES, GPULIMIT_WAIT="0",
        GPULIMIT_ON_LOSS="open",
    )  # fmt: skip
    out, err = one.communicate(timeout=30)
    assert one.returncode == 0, err
    assert json.loads(out)["gpu_share"] < 0.6
