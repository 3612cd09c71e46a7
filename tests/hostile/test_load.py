# SPDX-License-Identifier: Apache-2.0
"""Attempts to stop the daemon, or to delay others, by load: as another user, with real sockets and books."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi, lib

from tests.conftest import remove_segments
from tests.daemon.conftest import UnixConnection, ask, eventually, needs_root

pytestmark = needs_root()
LOADED_S = 2.0
"""Bound for an honest call on a busy test machine; bench/hostile_load.py measures."""
TIMEOUT = "1s"


def descriptors(node: Any) -> int:
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


def took_s(call: Callable[[], Any]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def scrape(node: Any, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.metrics_port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def goes_on(node: Any, client: Any, name: str) -> None:
    """Honest calls are answered."""
    one: list[Any] = []
    assert took_s(lambda: one.append(client(name))) < LOADED_S + 3  # with the start of a process
    assert took_s(lambda: scrape(node)) < LOADED_S
    one[0].kill()


@pytest.fixture
def names(tenant: str) -> Iterator[Callable[[str], str]]:
    yield lambda suffix: f"{tenant}-{suffix}"
    remove_segments(tenant)


# ---- connections ----

MANY_CONNECTIONS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
held, refused = [], ""
for number in range(SETTINGS["count"]):
    s = dial()
    s.sendall(SETTINGS["text"].encode())
    held.append(s)
held[-1].settimeout(5)
status, headers, _, _ = read_answer(held[-1])
say(status=status, error=headers.get("gpulimit-error", ""))
hear()
"""


@pytest.mark.parametrize("text", ["", "POST /v1/workers HTTP/1.1\r\nX: "])
def test_connections_that_never_finish_a_header_end_and_lock_nobody_out(
    daemon, attack, attacker_uid, client, names, text
) -> None:
    node = daemon(request_timeout=TIMEOUT, max_connections_per_user="50")
    before = descriptors(node)
    bad = attack(MANY_CONNECTIONS, uid=attacker_uid, settings={"count": 300, "text": text})
    eventually(lambda: descriptors(node) - before <= 60, within_s=5)
    goes_on(node, client, names("good"))
    assert bad.heard()["status"] in (0, 503)  # hung up on, or told that too many of its own wait
    eventually(lambda: descriptors(node) <= before + 10, within_s=5)


WAITING = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
status, headers, _ = register(SETTINGS["tenant"])
worker = headers["gpulimit-worker"]
held = []
for number in range(60):
    s = dial()
    s.sendall(request("GET", f"/v1/workers/{worker}/commands?after=0&wait=60"))
    held.append(s)
time.sleep(1)
s = dial()
status, headers, answer, _ = read_answer(s)
say(status=status, error=headers.get("gpulimit-error"), answer=answer)
hear()
"""


def test_a_user_with_too_many_waiting_calls_is_told_so_and_others_are_let_in(
    daemon, attack, attacker_uid, victim_uid, client, names
) -> None:
    node = daemon(max_connections_per_user="50")
    bad = attack("import time\n" + WAITING, uid=attacker_uid, settings={"tenant": names("bad")})
    said = bad.heard()
    assert said["status"] == 503
    assert said["error"] == said["answer"]["error"]
    assert said["error"] == f"user {attacker_uid} has 50 connections to the daemon already"
    assert client(names("good"), uid=victim_uid).answer["status"] == 200
    assert node.state()["counts"]["connection_refused"] >= 1


def test_a_body_that_does_not_come_is_waited_for_a_while(daemon) -> None:
    node = daemon(request_timeout=TIMEOUT)
    one = socket.socket(socket.AF_UNIX)
    one.connect(node.socket)
    one.settimeout(5)
    one.sendall(b"PUT /v1/tenants/a/quota HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
    assert b" 408 " in one.recv(4096).splitlines()[0]
    one.close()


def test_an_answer_that_is_not_read_is_not_kept_for_ever(daemon, attack, attacker_uid) -> None:
    node = daemon(request_timeout=TIMEOUT)
    before = descriptors(node)
    bad = attack(
        """
text = request("GET", "/v1/state") * 3000
held = []
for number in range(6):
    s = dial()
    s.setblocking(False)
    try:
        s.sendall(text)
    except BlockingIOError:
        pass
    held.append(s)
say(sent=True)
hear()
""",
        uid=attacker_uid,
    )
    assert bad.heard()["sent"]
    assert node.state()["gpus"]
    eventually(lambda: descriptors(node) <= before + 2, within_s=15)


def test_connections_to_the_metrics_port_that_ask_nothing_end(daemon) -> None:
    node = daemon(request_timeout=TIMEOUT, max_connections_per_user="40")
    before = descriptors(node)
    held = [socket.create_connection(("127.0.0.1", node.metrics_port)) for _ in range(100)]
    for one in held:
        with contextlib.suppress(OSError):
            one.sendall(b"GET /metrics HTTP/1.1\r\nX")
    assert took_s(lambda: scrape(node)) < LOADED_S
    eventually(lambda: descriptors(node) <= before + 2, within_s=6)
    for one in held:
        one.close()


def test_a_scraper_that_reads_nothing_holds_up_no_other(daemon) -> None:
    node = daemon(request_timeout=TIMEOUT)
    slow = []
    for _ in range(40):
        one = socket.create_connection(("127.0.0.1", node.metrics_port))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.append(one)
    for _ in range(5):
        assert scrape(node)[0] == 200
    for one in slow:
        one.close()


# ---- requests ----


def test_requests_above_the_rate_are_delayed_and_then_refused(
    daemon, attack, attacker_uid, client, names
) -> None:
    node = daemon(max_requests_per_user="5")
    bad = attack(
        """
import threading
found = []
def one():
    try:
        found.append(ask("GET", "/v1/state")[:2])
    except OSError:
        pass
threads = [threading.Thread(target=one) for _ in range(150)]
[t.start() for t in threads]
[t.join() for t in threads]
refusals = [h["gpulimit-error"] for s, h in found if s == 503]
say(served=sum(s == 200 for s, _ in found), refusals=refusals)
hear()
""",
        uid=attacker_uid,
    )
    said = bad.heard()
    assert 1 <= said["served"] <= 80
    assert any("asks more than 5 times a second" in refusal for refusal in said["refusals"])
    goes_on(node, client, names("good"))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x"])
def test_a_compressed_body_is_refused_before_it_is_read(daemon, encoding) -> None:
    node = daemon(log_level="info")
    for body in (b"not gzip", b"x" * 60_000):
        connection = UnixConnection(node.socket)
        connection.request("POST", "/v1/workers", body, {"Content-Encoding": encoding})
        answer = connection.getresponse()
        assert answer.status == 415
        assert b"compressed" in answer.read()
        connection.close()
    assert "compressed" not in node.log.read_text()


ODD = {
    "deep": b"[" * 60_000,
    "deeper": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "not a number": b'{"version": NaN}',
    "infinite": b'{"version": -Infinity}',
    "long number": b'{"version": ' + b"1" * 5000 + b"}",
    "surrogate": b'{"version": "\\ud800"}',
    "bytes": bytes(range(256)),
    "list": b"[]",
    "empty": b"",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_odd_bodies_are_refused_in_json(daemon, body) -> None:
    node = daemon()
    status, headers, answer = ask(node.socket, "POST", "/v1/workers", body)
    assert status == 422
    assert headers["gpulimit-error"].startswith(answer["error"][:20])


def test_what_is_too_long_or_not_there_is_refused_in_json(daemon) -> None:
    node = daemon()
    assert node.ask("POST", "/v1/workers", b"x" * 70_000)[0] == 413
    for method, target, expected in (("GET", "/nowhere", 404), ("PATCH", "/v1/state", 405)):
        status, headers, answer = node.ask(method, target)
        assert (status, answer["error"]) == (expected, headers["gpulimit-error"])
    with contextlib.suppress(ConnectionError, http.client.BadStatusLine):
        assert node.ask("GET", "/v1/tenants/" + "a" * 9000 + "/quota")[0] in (400, 414)
    assert node.state()["gpus"]


def test_thousands_of_pipelined_calls_delay_no_other(daemon, attack, attacker_uid, client, names) -> None:
    node = daemon()
    bad = attack(
        """
s = dial()
s.setblocking(False)
sent = 0
try:
    for _ in range(8):
        sent += s.send(request("GET", "/v1/state") * 1000)
except BlockingIOError:
    pass
say(sent=sent)
hear()
""",
        uid=attacker_uid,
    )
    assert bad.heard()["sent"] > 0
    goes_on(node, client, names("good"))


def test_a_client_that_hangs_up_is_no_error(daemon) -> None:
    node = daemon()
    for cut in (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /metr"):
        for is_reset in (False, True):
            one = socket.create_connection(("127.0.0.1", node.metrics_port))
            one.sendall(cut)
            if is_reset:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            one.close()
    for cut in (
        b"GET /v1/state HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/workers HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ):
        one = socket.socket(socket.AF_UNIX)
        one.connect(node.socket)
        one.sendall(cut)
        one.close()
    time.sleep(0.5)
    assert node.state()["gpus"]
    assert "ERROR" not in node.log.read_text()


# ---- tenants, processes, books ----

TENANTS = """
import ctypes
children, results = [], []
for number in range(SETTINGS["count"]):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status, headers, _ = register(f"{SETTINGS['prefix']}-{number}")
        os.write(write_end, json.dumps([status, headers.get("gpulimit-error", "")]).encode())
        hear()
        os._exit(0)
    results.append(json.loads(os.read(read_end, 4096)))
    os.close(read_end), os.close(write_end)
say(results=results)
hear()
"""


def test_users_cannot_fill_the_nodes_places(daemon, attack, client, names) -> None:
    node = daemon(max_tenants="16", max_tenants_per_user="8")
    taken = 0
    for number in range(4):
        bad = attack(TENANTS, uid=230_000 + number, settings={"count": 10, "prefix": names(f"bad{number}")})
        results = bad.heard()["results"]
        taken += sum(status == 200 for status, _ in results)
        assert all("max_tenants" in said or "places" in said for status, said in results if status != 200)
    assert taken < 16
    assert client(names("good"), uid=240_000).answer["status"] == 200
    assert client(names("roots")).answer["status"] == 200
    assert len(node.state()["tenants"]) == taken + 2


HEAVY = """
import fcntl, mmap, struct, time
L = SETTINGS["layout"]
go_read, go_write = os.pipe()
for number in range(SETTINGS["count"]):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status, headers, _ = register(f"{SETTINGS['prefix']}-{number}")
        fd = os.open("/dev/shm/" + headers["gpulimit-usage"], os.O_RDWR)
        books = mmap.mmap(fd, L["gl_usage"])
        gpu = bytes.fromhex(SETTINGS["gpu"].partition("-")[2].replace("-", ""))
        for device in range(16):
            at = L["gl_usage.device"] + device * L["gl_device"]
            uuid = gpu if device == 0 else bytes([device]) * 16
            books[at + L["gl_device.uuid"]:at + L["gl_device.uuid"] + 16] = uuid
            struct.pack_into("<I", books, at + L["gl_device.ready"], 1)
        for slot in range(512):
            at = L["gl_usage.slot"] + slot * L["gl_slot"]
            struct.pack_into("<Q", books, at + L["gl_slot.generation"], 1)
        struct.pack_into("<I", books, SETTINGS["slots_used"], 512)
        fcntl.lockf(fd, fcntl.LOCK_EX, L["gl_slot"] * 512, L["gl_usage.slot"])
        os.write(write_end, b"x")
        os.close(go_write)
        os.read(go_read, 1)             # until all are there
        while SETTINGS["asks"]:
            ask("GET", "/v1/state")
        hear()
        os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 1) == b"x"
    os.close(read_end)
os.close(go_write)
say(ready=True)
hear()
"""


@pytest.mark.parametrize("asks", [False, True], ids=["asleep", "asking for all of it"])
def test_full_books_of_many_tenants_delay_no_other(daemon, attack, attacker_uid, client, names, asks) -> None:
    node = daemon()
    settings = {
        "count": 16,
        "prefix": names("heavy"),
        "gpu": node.state()["gpus"][0]["uuid"],
        "slots_used": ffi.offsetof("struct gl_header", "slots_used"),
        "asks": asks,
    }
    good = client(names("good"))
    bad = attack(HEAVY, uid=attacker_uid, settings=settings)
    assert bad.heard()["ready"]
    assert (
        max(took_s(lambda: node.ask("GET", f"/v1/tenants/{names('good')}/quota")) for _ in range(20))
        < LOADED_S
    )
    assert max(took_s(lambda: scrape(node)) for _ in range(5)) < LOADED_S
    oldest_ms = 0.0
    for _ in range(50):
        beat = good.tell(order="look")["heartbeat_ns"]
        oldest_ms = max(oldest_ms, (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - beat) / 1e6)
        time.sleep(0.02)
    assert oldest_ms < 500  # more means to tenants that the daemon is away


REFUSED_AFTER_OPENING = """
import fcntl, struct
L = SETTINGS["layout"]
name = "/dev/shm/gpulimit.u." + SETTINGS["tenant"]
fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, L["gl_usage"])
os.pwrite(fd, bytes.fromhex(SETTINGS["header"]), 0)
fcntl.lockf(fd, fcntl.LOCK_EX, SETTINGS["header_size"], SETTINGS["header_size"])
statuses = [register(SETTINGS["tenant"])[0] for _ in range(200)]
say(statuses=sorted(set(statuses)))
hear()
"""


def test_registrations_refused_after_the_books_were_opened_leak_nothing(
    daemon, attack, attacker_uid, client, names
) -> None:
    header = ffi.new("struct gl_header *")
    header.magic, header.version, header.ready = lib.GL_USAGE_MAGIC, lib.GL_LAYOUT_VERSION, 1
    header.size = ffi.sizeof("struct gl_usage")
    node = daemon(log_level="info")
    before = descriptors(node)
    settings = {
        "tenant": names("trap"),
        "header": bytes(ffi.buffer(header)).hex(),
        "header_size": ffi.sizeof("struct gl_header"),
    }
    bad = attack(REFUSED_AFTER_OPENING, uid=attacker_uid, settings=settings)
    assert not {200, 0} & set(bad.heard()["statuses"])
    assert descriptors(node) <= before + 2
    assert node.log.stat().st_size < 20_000
    assert client(names("good")).answer["status"] == 200


# ---- descriptors ----


def test_no_descriptors_left_is_said_and_passes(
    daemon, daemon_env, attack, victim_uid, client, names, start_process
) -> None:
    node = daemon(request_timeout="5s", log_level="info")
    subprocess.run(["prlimit", f"--pid={node.process.pid}", "--nofile=64:"], check=True)
    held = []
    for _ in range(100):  # of root, which has all descriptors that there are
        one = socket.socket(socket.AF_UNIX)
        one.connect(node.socket)
        one.sendall(b"GET /v1/workers/x/commands HTTP/1.1\r\n")
        held.append(one)
    time.sleep(1)
    refusals = []
    for one in held:
        one.setblocking(False)
        with contextlib.suppress(OSError):
            refusals.append(one.recv(4096))
    assert any(b"503" in said and b"no descriptors left" in said for said in refusals), refusals[:3]
    text = node.log.read_text()
    assert "Traceback" not in text
    assert "no descriptors left" in text
    assert len(text) < 10_000
    assert "has gone" not in text
    for one in held:
        one.close()
    subprocess.run(["prlimit", f"--pid={node.process.pid}", "--nofile=4096:"], check=True)
    eventually(lambda: client(names("good"), is_refused=True).answer["status"] == 200, within_s=10)


def test_the_limit_on_descriptors_is_raised_at_the_start(daemon, tmp_path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        node = daemon()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


# ---- log ----


def test_the_log_is_bounded_whatever_is_refused(daemon, attack, attacker_uid, names) -> None:
    node = daemon(log_level="info", log_limit="64KiB")
    bad = attack(
        """
for number in range(1500):
    kind = number % 5
    if kind == 0:
        register("../" + str(number))
    elif kind == 1:
        register("pod-" + str(number))
    elif kind == 2:
        register(SETTINGS["tenant"] + str(number), {"GPULIMIT_REQUEST": "101%"})
    elif kind == 3:
        ask("POST", "/v1/workers", b"{", headers="Content-Encoding: gzip\\r\\n")
    else:
        s = dial(); s.sendall(b"\\x00\\x01\\x02 nonsense\\r\\n\\r\\n"); s.close()
say(done=True)
hear()
""",
        uid=attacker_uid,
        settings={"tenant": names("x")},
    )
    assert bad.heard()["done"]
    assert node.log.stat().st_size < 40_000
