# SPDX-License-Identifier: Apache-2.0
"""Attempts to be another process over TCP, by a user who has the token for registering."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypervisor.api.server import is_same
from hypervisor.errors import Refused
from hypervisor.host import process_files, tcp_peer
from hypervisor.host.tcp_endpoints import TcpEndpoints
from tests.daemon.conftest import Daemon, eventually, free_port, needs_root
from tests.hostile.conftest import Hostile

pytestmark = needs_root()
DONE, UNKNOWN, FORBIDDEN, MISSING, NOT_YET = 200, 401, 403, 404, 503
TOKEN, OPERATORS = "register-token-0123456789", "operators-token-0123456789"


@dataclass
class Node:
    daemon: Daemon
    settings: dict[str, Any]


@pytest.fixture
def node(daemon: Callable[..., Daemon], tmp_path: Path) -> Node:
    port = free_port()
    files = {}
    for key, token in (("tcp_register_token_file", TOKEN), ("tcp_token_file", OPERATORS)):
        path = tmp_path / key
        path.write_text(token)
        path.chmod(0o600)
        files[key] = str(path)
    return Node(daemon(tcp_addr=f"127.0.0.1:{port}", **files), {"port": port, "token": TOKEN})


TCP = """
import subprocess, time
def tcp():
    made = dial(port=SETTINGS["port"])
    os.set_inheritable(made.fileno(), True)
    return made
def post(said, connection):
    return ask("POST", "/v1/workers", said, on=connection, token=SETTINGS["token"])
def user_of(pid):
    return open(f"/proc/{pid}/status").read().split("Uid:")[1].splitlines()[0].split()
"""


@pytest.mark.parametrize("how", ["effective", "as root"])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_connection_left_to_a_setuid_program_does_not_speak_for_it(
    node: Node, attack: Hostile, setuid: Path, attacker_uid: int, tenant: str, how: str, keeps: bool
) -> None:
    text = f"""{TCP}
s = tcp()
program = subprocess.Popen([{str(setuid)!r}, {how!r}], close_fds=False)
while user_of(program.pid)[1] != "0" or {how == "as root"} and user_of(program.pid)[0] != "0":
    time.sleep(0.01)
said = wish({tenant!r}, {{"GPULIMIT_COMPUTE": "40"}})
said |= {{"pid": program.pid, "start_ticks": ticks(program.pid)}}
if {keeps}:
    status, _, answer = post(said, s)
    say(status=status, error=answer["error"])
else:
    s.sendall(request("POST", "/v1/workers", said, token=SETTINGS["token"]))
    s.close()
    say(status=0)
hear()
"""
    one = attack(text, uid=attacker_uid, settings=node.settings)
    said = one.heard()
    if keeps:
        assert said["status"] == FORBIDDEN
        assert "runs as another user than made this connection" in said["error"]
    else:
        time.sleep(0.5)
    assert node.daemon.state()["tenants"] == []


def test_a_connection_that_two_processes_hold_registers_neither(
    node: Node, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    text = f"""{TCP}
s = tcp()
child = subprocess.Popen(["sleep", "60"], close_fds=False)
said = wish({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}})
shared = post(said, s)
childs = post(said | {{"pid": child.pid, "start_ticks": ticks(child.pid)}}, s)
child.kill()
child.wait()
say(shared=shared[0], childs=childs[0], error=shared[2]["error"], alone=post(said, s)[0])
hear()
"""
    one = attack(text, uid=attacker_uid, settings=node.settings)
    said = one.heard()
    assert (said["shared"], said["childs"], said["alone"]) == (NOT_YET, NOT_YET, DONE)
    assert "holds this connection too" in said["error"]
    one.tell(None)


def test_nobody_asks_for_another_workers_commands(
    node: Node, attack: Hostile, attacker_uid: int, victim_uid: int, tenant: str
) -> None:
    victim = attack(
        f"""{TCP}
status, headers, answer = post(wish({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}}), tcp())
say(status=status, worker=headers["gpulimit-worker"], pid=os.getpid(), ticks=ticks())
hear()
""",
        uid=victim_uid,
        settings=node.settings,
    )
    said = victim.heard()
    text = f"""{TCP}
target = "/v1/workers/{said["worker"]}"
more = {{"port": SETTINGS["port"], "token": SETTINGS["token"]}}
say(answers=[
    ask("GET", target + "/commands?after=0&wait=0", **more)[0],
    ask("POST", target + "/results", {{"number": 1, "ok": True}}, **more)[0],
    post(wish({tenant!r}) | {{"pid": {said["pid"]}, "start_ticks": {said["ticks"]}}}, tcp())[0],
])
say(paths=[ask(method, path, {{}}, **more)[0] for method, path in [
    ("GET", "/v1/state"),
    ("PUT", "/v1/workers/../tenants/{tenant}/quota"),
    ("PUT", "/v1/workers/%2e%2e/tenants/{tenant}/quota"),
    ("GET", "/v1/workers%2f..%2f..%2fv1%2fstate"),
    ("GET", "//v1/state"),
    ("GET", "/v1/state/../workers"),
]])
"""
    one = attack(text, uid=attacker_uid, settings=node.settings)
    assert one.heard() == {"answers": [FORBIDDEN] * 3}
    assert not {DONE, 204, 500} & set(one.heard()["paths"])
    shown = node.daemon.tenant(tenant)
    assert (shown["uid"], len(shown["workers"])) == (victim_uid, 1)
    victim.tell(None)
    eventually(lambda: not node.daemon.tenant(tenant)["workers"])


def test_a_daemon_that_may_not_see_others_files_says_what_it_needs() -> None:
    """As under the systemd unit, which gives no CAP_SYS_PTRACE."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as s,
    ):
        ends = TcpEndpoints(s.getsockname(), s.getpeername())
        ticks = process_files.stat_of(os.getpid()).start_ticks
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            try:
                tcp_peer.find(ends, os.getppid(), ticks, tcp_peer.SocketHolders())
            except Refused as error:
                os.write(write_end, str(error).encode())
            os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        assert b"it needs CAP_SYS_PTRACE" in os.read(read_end, 1000)
        os.close(read_end)


def test_how_long_a_token_is_compared_tells_nothing_of_it() -> None:
    """The whole is hashed first: a wrong first and a wrong last character take as long."""
    token = "t" * 50_000
    first, last = "x" + token[1:], token[:-1] + "x"
    best: dict[str, int] = {}
    for _ in range(200):
        for name, given in (("first", first), ("last", last), ("right", token)):
            begin = time.perf_counter_ns()
            assert is_same(given, token) == (name == "right")
            best[name] = min(best.get(name, 1 << 60), time.perf_counter_ns() - begin)
    assert max(best.values()) < 1.25 * min(best.values()), best
