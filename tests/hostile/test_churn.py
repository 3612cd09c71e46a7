# SPDX-License-Identifier: Apache-2.0
"""Attempts to wear the daemon out by connections without pause, as another user or in a container."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import remove_segments
from tests.daemon.conftest import needs_root
from tests.hostile.conftest import Groups, Hostile
from tests.hostile.test_load import LOADED_S, scrape, took_s

pytestmark = needs_root()
RATE = "5"
BURST = 5 * 10

CHURN = """
import itertools

def churn(asks):
    for number in itertools.count():
        if number % 50 == 0:
            time.sleep(0.005)  # what is tested are bounds, not who gets a busy machine's processors
        try:
            s = socket.create_connection(("127.0.0.1", SETTINGS["port"])) if SETTINGS["port"] else dial()
            if SETTINGS["port"]:  # reset, so that the node does not run out of ports
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if asks:
                s.sendall(b"GET /metrics HTTP/1.1\\r\\nX: ")
            s.close()
        except OSError:
            time.sleep(0.001)

for number in range(2):
    if os.fork() == 0:
        churn(number)
time.sleep(SETTINGS["first_s"])
errors = set()
while not errors:
    try:
        s = dial(port=SETTINGS["port"])
        errors |= {read_answer(s)[1].get("gpulimit-error", "")} - {""}
    except OSError:
        pass
say(errors=sorted(errors))
hear()
"""

HONEST = """
begin = time.monotonic()
status, headers, _ = register(SETTINGS["tenant"])
say(status=status, error=headers.get("gpulimit-error"), took_s=time.monotonic() - begin)
hear()
"""


@pytest.fixture
def names(tenant: str) -> Iterator[Callable[[str], str]]:
    yield lambda suffix: f"{tenant}-{suffix}"
    remove_segments(tenant)


@pytest.mark.parametrize("place", ["socket", "metrics"])
def test_a_user_who_connects_without_pause_is_told_so_and_delays_no_other(
    daemon, attack, attacker_uid, victim_uid, names, place
) -> None:
    node = daemon(max_requests_per_user=RATE)
    before = node.log.stat().st_size
    port = node.metrics_port if place == "metrics" else 0
    bad = attack(CHURN, uid=attacker_uid, settings={"port": port, "first_s": 1})
    who = f"user {attacker_uid} over TCP" if port else f"user {attacker_uid}"
    assert bad.heard()["errors"] == [f"{who} connects more than {RATE} times a second"]
    for number in range(3):
        good = attack(HONEST, uid=victim_uid, settings={"tenant": names(f"good{number}")}).heard()
        assert good["status"] == 200
        assert good["took_s"] < LOADED_S
        assert took_s(lambda: scrape(node)) < LOADED_S
    assert node.state()["counts"]["connection_refused"] > BURST
    written = node.log.read_text()[before:]
    assert 1 <= written.count("connects more than") <= 2  # over TCP also of those that have hung up by now


def in_container(control_group: Groups) -> Any:
    return control_group(f"docker-{secrets.token_hex(32)}.scope")


@pytest.mark.parametrize("user", ["root", "another"])
def test_a_container_that_connects_without_pause_is_not_the_other_users_of_its_number(
    daemon, attack: Hostile, control_group: Groups, attacker_uid, names, user
) -> None:
    node = daemon(max_requests_per_user=RATE)
    uid = None if user == "root" else attacker_uid
    group = in_container(control_group)
    bad = attack(CHURN, uid=uid, group=group, settings={"port": 0, "first_s": 1})
    container = group.name.removeprefix("docker-").removesuffix(".scope")[:12]
    expected = f"user {uid or 0} of container {container} connects more than {RATE} times a second"
    assert bad.heard()["errors"] == [expected]
    for place, tenant in ((in_container(control_group), ""), (None, names("plain"))):
        good = attack(HONEST, uid=uid, group=place, settings={"tenant": tenant}).heard()
        assert good["status"] == 200, good
        assert good["took_s"] < LOADED_S
    assert node.state()["gpus"]


def test_requests_above_the_rate_end_the_connection_and_those_behind_them_are_not_answered(
    daemon, attack, attacker_uid
) -> None:
    daemon(max_requests_per_user=RATE)
    bad = attack(
        """
held = [dial() for _ in range(30)]
for s in held:
    s.sendall(request("GET", "/v1/workers/x/commands") * 100)
time.sleep(3)
found = []
for s in held:
    s.setblocking(False)
    data = b""
    try:
        while piece := s.recv(1 << 16):
            data += piece
    except OSError:
        pass
    if b"HTTP/1.1 503" in data:
        found.append([data.count(b"HTTP/1.1 503"), data.count(b"HTTP/1.1 404")])
say(found=found)
hear()
""",
        uid=attacker_uid,
    )
    found = bad.heard()["found"]
    assert len(found) >= 5
    assert all(refusals == 1 for refusals, _ in found)
    assert sum(answers for _, answers in found) <= BURST + 2 * int(RATE) * 3


def test_a_header_that_is_too_long_is_refused(daemon) -> None:
    node = daemon()
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(node.socket)
        one.settimeout(10)
        one.sendall(b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 40_000)
        assert b" 431 " in one.recv(4096).splitlines()[0]
    assert node.state()["gpus"]


def test_connections_that_ask_nothing_do_not_keep_the_daemon_from_ending(daemon) -> None:
    node = daemon()
    held = []
    for _ in range(20):
        one = socket.socket(socket.AF_UNIX)
        one.connect(node.socket)
        held.append(one)
    held[0].sendall(b"GET /v1/st")
    assert node.state()["gpus"]
    begin = time.monotonic()
    node.stop()
    assert time.monotonic() - begin < 10
    for one in held:
        one.close()
