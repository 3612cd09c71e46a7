# SPDX-License-Identifier: Apache-2.0
"""What many quiet processes cost, and that many can come at once."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from limiter._native import lib

from tests.conftest import clean_environ
from tests.daemon.conftest import eventually

PROCESSES = 1000
PROGRAM = """
import json, os, socket, sys
path, tenant, count, version = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def be_a_worker(number):
    def ask(text):
        s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(path); s.sendall(text.encode());
        return s
    body = json.dumps({"version": version, "pid": os.getpid(), "tenant": f"{tenant}-{number % 10}"})
    s = ask(f"POST /v1/workers HTTP/1.0\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}")
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += s.recv(4096)
    s.close()
    worker = [l for l in head.decode().splitlines() if l.startswith("Gpulimit-Worker")][0].split()[1]
    s = ask(f"GET /v1/workers/{worker}/commands?after=0&wait=60 HTTP/1.0\\r\\n\\r\\n")
    os.write(1, b".")
    s.recv(100)
    os.write(1, b"!")
    os._exit(0)
for number in range(count):
    if os.fork() == 0:
        be_a_worker(number)
for _ in range(count):
    os.wait()
"""


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


def test_a_thousand_idle_long_polls_cost_next_to_nothing(daemon, start_process, tenant) -> None:
    node = daemon(log_level="info")
    before_mib = resident_mib(node.process.pid)
    argv = [sys.executable, "-c", PROGRAM, node.socket, tenant, str(PROCESSES), str(lib.GL_LAYOUT_VERSION)]
    begin = time.monotonic()
    crowd = start_process(argv, env=clean_environ(), text=False)
    read(crowd, b".", PROCESSES)
    took_s = time.monotonic() - begin
    assert took_s < 20
    assert node.state()["counts"]["registered"] == PROCESSES
    ticks, begin = cpu_ticks(node.process.pid), time.monotonic()
    time.sleep(2)
    used = (cpu_ticks(node.process.pid) - ticks) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begin)
    grown_mib = resident_mib(node.process.pid) - before_mib
    print(f"{PROCESSES} registered in {took_s:.1f} s; idle {used:.1%} of a core; {grown_mib} MiB")
    assert used < 0.10
    assert grown_mib < 100
    begin = time.monotonic()
    for number in range(10):
        assert node.ask("POST", f"/v1/tenants/{tenant}-{number}/suspend")[0] == 204
    read(crowd, b"!", PROCESSES)
    assert time.monotonic() - begin < 10  # all were told
    eventually(lambda: not any(t["workers"] for t in node.state()["tenants"]), within_s=20)


def read(process: Any, sign: bytes, count: int) -> None:
    """Read until a sign has come so often."""
    seen, end = 0, time.monotonic() + 40
    while seen < count:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{seen} of {count}: {process.poll()}"
        data = os.read(process.stdout.fileno(), 65536)
        assert data, process.stderr.read()
        seen += data.count(sign)


def test_idle_connections_of_one_client_do_not_lock_out_others(daemon, client) -> None:
    node = daemon()
    idle = []
    for _ in range(500):
        one = socket.socket(socket.AF_UNIX)
        one.connect(node.socket)
        idle.append(one)
    assert client().answer["status"] == 200
    for one in idle:
        one.close()
