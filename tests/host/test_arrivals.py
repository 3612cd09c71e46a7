# SPDX-License-Identifier: Apache-2.0
"""Connections that are accepted many at a time, and whose they are."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.host.arrivals import NO_USER, Arrival, Arrivals

MOST = 8


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.setblocking(False)
        made.listen(64)
        yield made


def dial(listener: socket.socket) -> socket.socket:
    made = socket.socket(listener.family)
    made.connect(listener.getsockname())
    made.settimeout(10)
    return made


def close(came: list[Arrival]) -> None:
    for one in came:
        os.close(one.fd)


def test_what_waits_is_accepted_some_at_a_time_with_the_process_that_connected(
    listener: socket.socket,
) -> None:
    arrivals = Arrivals(listener, MOST)
    clients = [dial(listener) for _ in range(MOST + 2)]
    first, second = arrivals.accept(), arrivals.accept()
    assert (len(first), len(second), arrivals.accept()) == (MOST, 2, [])
    assert {(one.pid, one.uid, one.gid) for one in first + second} == {
        (os.getpid(), os.getuid(), os.getgid())
    }
    assert not any(os.get_blocking(one.fd) or os.get_inheritable(one.fd) for one in first)
    close(first + second)
    for client in clients:
        client.close()


def test_those_that_are_turned_away_are_closed_and_the_first_ones_know_why(listener: socket.socket) -> None:
    arrivals = Arrivals(listener, 64)
    clients = [dial(listener) for _ in range(40)]
    arrivals.turn_away([one.fd for one in arrivals.accept()], b"why")
    said = []
    for client in clients:
        try:
            said.append(client.recv(10))
        except ConnectionError:
            said.append(b"")
        client.close()
    assert said == [b"why"] * 16 + [b""] * 24


def test_no_descriptors_left_is_an_error_once_none_could_be_accepted(listener: socket.socket) -> None:
    arrivals = Arrivals(listener, MOST)
    clients = [dial(listener) for _ in range(4)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, limits[1]))
        came = arrivals.accept()
        with pytest.raises(OSError) as found:
            arrivals.accept()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(came) == 2
    assert found.value.errno == errno.EMFILE
    close(came + arrivals.accept())
    for client in clients:
        client.close()


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_tcp_connections_of_this_node_have_an_owner_until_they_are_closed(host: str, is_reset: bool) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            ("::" if "ffff" in host else host, 0), family=family, dualstack_ipv6="ffff" in host
        )
    except (OSError, ValueError):
        pytest.skip(f"no {host} here")
    listener.setblocking(False)
    arrivals = Arrivals(listener, MOST)
    with listener:
        for _ in range(3):
            gone = socket.create_connection((host.removeprefix("::ffff:"), listener.getsockname()[1]))
            if is_reset:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.close()
            client = socket.create_connection((host.removeprefix("::ffff:"), listener.getsockname()[1]))
            came = arrivals.accept()
            assert [one.uid for one in came] == [NO_USER, os.getuid()]
            close(came)
            client.close()
        arrivals.close()
