# SPDX-License-Identifier: Apache-2.0
"""Connections over every kind of socket, as far as the kernel has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.scraper.dialer import Connector
from hypervisor.scraper.endpoint import LOCAL_CID, Endpoint
from hypervisor.scraper.errors import FetchError
from hypervisor.scraper.fetch import Budget, fetch, session
from tests.conftest import needs_program
from tests.remote.exporters import Behaviour, Exporter, Monitor, drip, endless, hang, head, page, raw

GOOD = b"m 1\n"


def get(endpoint: Endpoint, budget: Budget | None = None, netns: str = "") -> bytes:
    async def run() -> bytes:
        async with session(Connector(endpoint, netns=netns)) as client:
            return await fetch(client, "http://guest/metrics", budget or Budget())

    return asyncio.run(run())


def reason_of(endpoint: Endpoint, budget: Budget | None = None) -> str:
    with pytest.raises(FetchError) as caught:
        get(endpoint, budget)
    return caught.value.reason


@contextlib.contextmanager
def serving(exporter: Exporter) -> Iterator[Exporter]:
    try:
        yield exporter
    finally:
        exporter.close()


def unix_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def test_tcp_and_unix(tmp_path) -> None:
    with serving(Exporter(page(GOOD))) as tcp:
        assert get(Endpoint("tcp", "127.0.0.1", tcp.listener.getsockname()[1])) == GOOD
    path = tmp_path / "s"
    with serving(Exporter(page(GOOD), unix_listener(path))):
        assert get(Endpoint("unix", str(path))) == GOOD
    assert reason_of(Endpoint("unix", str(path))) == "refused"
    assert reason_of(Endpoint("unix", str(tmp_path / "absent"))) == "refused"


PROGRAM = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    peer, _ = server.accept()
    peer.recv(4096)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nm 1\\n")
    peer.close()
"""


@needs_program("unshare", "ip")
def test_from_another_network_namespace(start_process) -> None:
    inner = f"ip link set lo up && exec {sys.executable} -c '{PROGRAM}'"
    process = start_process(["unshare", "--net", "sh", "-c", inner], env={"PATH": os.environ["PATH"]})
    line = process.stdout.readline()
    if not line:
        pytest.skip(f"no network namespace can be made: {process.stderr.read()}")
    endpoint = Endpoint("tcp", "127.0.0.1", int(line))
    assert reason_of(endpoint) == "refused", "it is not of this namespace"
    assert get(endpoint, netns=f"/proc/{process.pid}/ns/net") == GOOD
    with pytest.raises(FetchError) as caught:
        get(endpoint, netns="/proc/absent/ns/net")
    assert caught.value.reason == "refused" and "No such file" in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as own:
        assert own.getsockname(), "this thread is where it was"


def test_a_unix_socket_whose_queue_is_full(tmp_path) -> None:
    path = tmp_path / "s"
    with unix_listener(path) as listener, contextlib.ExitStack() as stack:
        listener.listen(0)
        for _ in range(2):
            filler = stack.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(str(path))
        assert reason_of(Endpoint("unix", str(path))) == "refused"


def test_a_monitors_socket(tmp_path) -> None:
    path = tmp_path / "v.sock"
    with serving(Monitor(path, {9402: page(GOOD), 5000: hang})) as monitor:
        assert get(Endpoint("hvsock", str(path), 9402)) == GOOD
        assert monitor.asked == [9402]
        assert reason_of(Endpoint("hvsock", str(path), 9999)) == "refused"
        assert reason_of(Endpoint("hvsock", str(path), 5000), Budget(total_s=0.5)) == "timeout"


def then_hang(data: bytes) -> Behaviour:
    def behave(peer: socket.socket) -> None:
        peer.sendall(data)
        hang(peer)

    return behave


@pytest.mark.parametrize(
    ("greeting", "reasons"),
    [
        (raw(b"NO\n"), {"refused"}),
        (raw(b"OK " + b"1" * 1000), {"refused"}),
        (endless(b"x" * 4096), {"refused"}),
        (hang, {"timeout"}),
        (drip(b"OK 1234567890123456789012345678901234567890\n", 0.1), {"timeout"}),
        (then_hang(b"OK 1\n" + head("Content-Length: 4") + GOOD), {""}),
    ],
    ids=["no", "no line", "endless", "silent", "slow", "everything at once"],
)
def test_a_monitor_that_misbehaves(tmp_path, greeting: Behaviour, reasons) -> None:
    path = tmp_path / "v.sock"
    with serving(Exporter(greeting, unix_listener(path), is_greeted=False)):
        endpoint = Endpoint("hvsock", str(path), 9402)
        if reasons == {""}:
            assert get(endpoint) == GOOD
        else:
            assert reason_of(endpoint, Budget(connect_s=1.0, total_s=5.0)) in reasons


def vsock_reaches_itself() -> bool:
    """Whether the kernel has vsock_loopback."""
    if not hasattr(socket, "AF_VSOCK"):
        return False
    try:
        with socket.socket(socket.AF_VSOCK) as listener, socket.socket(socket.AF_VSOCK) as client:
            listener.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
            listener.listen(1)
            client.settimeout(0.5)
            client.connect((LOCAL_CID, listener.getsockname()[1]))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not vsock_reaches_itself(), reason="the kernel has no vsock_loopback")
def test_vsock() -> None:
    listener = socket.socket(socket.AF_VSOCK)
    listener.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
    listener.listen(8)
    port = listener.getsockname()[1]
    with serving(Exporter(page(GOOD), listener)):
        assert get(Endpoint("vsock", str(LOCAL_CID), port)) == GOOD
    assert reason_of(Endpoint("vsock", str(LOCAL_CID), port)) == "refused"


@pytest.mark.skipif(not hasattr(socket, "AF_VSOCK"), reason="Python has no AF_VSOCK")
def test_a_cid_that_nobody_has_is_given_up_in_time() -> None:
    begin = time.monotonic()
    endpoint = Endpoint("vsock", "123456789", 9402)
    assert reason_of(endpoint, Budget(connect_s=0.5, total_s=1.0)) in ("refused", "timeout")
    assert time.monotonic() - begin < 5
