# SPDX-License-Identifier: Apache-2.0
"""Exporters that misbehave: each writes raw bytes to whoever connects. In threads, on any kind of socket."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Behaviour = Callable[[socket.socket], None]
MIB = 1 << 20


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def page(body: bytes, *lines: str, status: str = "200 OK") -> Behaviour:
    """Answer with a page, whole."""
    answer = head(f"Content-Length: {len(body)}", *lines, status=status) + body
    return lambda peer: peer.sendall(answer)


def raw(data: bytes) -> Behaviour:
    return lambda peer: peer.sendall(data)


def endless(chunk: bytes, start: bytes = b"", *, is_chunked: bool = False) -> Behaviour:
    """Answer with a body that is made as it goes and never ends."""
    part = b"%x\r\n%b\r\n" % (len(chunk), chunk) if is_chunked else chunk

    def behave(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(part)

    return behave


def drip(data: bytes, pause_s: float) -> Behaviour:
    """Answer one byte at a time."""

    def behave(peer: socket.socket) -> None:
        for byte in data:
            peer.sendall(bytes([byte]))
            time.sleep(pause_s)

    return behave


def hang(peer: socket.socket) -> None:
    """Take the request and never answer."""
    while peer.recv(4096):
        pass


def leave(_: socket.socket) -> None:
    """Close at once."""


def bomb(size: int) -> bytes:
    """Return gzip that unpacks to so many bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(b"a" * MIB) for _ in range(size // MIB)]
    return b"".join([*parts, packer.flush()])


class Exporter:
    """A listening exporter."""

    def __init__(
        self, behaviour: Behaviour, listener: socket.socket | None = None, *, is_greeted: bool = True
    ) -> None:
        """Without `is_greeted` it does not wait for a request."""
        self.behaviour = behaviour
        self.is_greeted = is_greeted
        self.connections = 0
        self.request = b""
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/metrics"

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self._peers.append(peer)
            self._threads.append(threading.Thread(target=self._serve, args=(peer,)))
            self._threads[-1].start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            if self.is_greeted:
                self.request = request_of(peer)
            self.behaviour(peer)

    def close(self) -> None:
        for one in (self.listener, *self._peers):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()


def request_of(peer: socket.socket) -> bytes:
    """Return the request."""
    request = b""
    while b"\r\n\r\n" not in request and (more := peer.recv(4096)):
        request += more
    return request


class Monitor(Exporter):
    """What Firecracker and Cloud Hypervisor do at a machine's socket; guests by port. It can be filled
    anew: an empty one is a guest where nobody listens.
    """

    def __init__(self, path: Path, ports: Mapping[int, Behaviour]) -> None:
        self.ports = dict(ports)
        self.asked: list[int] = []
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(64)
        super().__init__(self._connect, listener, is_greeted=False)

    def _connect(self, peer: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n") and (byte := peer.recv(1)):
            line += byte
        word, port = line.split()
        assert word == b"CONNECT"
        self.asked.append(int(port))
        behaviour = self.ports.get(int(port))
        if behaviour is not None:
            peer.sendall(b"OK 1073741824\n")
            self.request = request_of(peer)
            behaviour(peer)


@contextlib.contextmanager
def exporter(behaviour: Behaviour) -> Iterator[Exporter]:
    made = Exporter(behaviour)
    try:
        yield made
    finally:
        made.close()
