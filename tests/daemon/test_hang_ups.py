# SPDX-License-Identifier: Apache-2.0
"""Clients that hang up at any moment of a request: the daemon goes on and its log has no traceback."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

HEADER = b"POST /v1/workers HTTP/1.1\r\nHost: node\r\nContent-Length: 10\r\n\r\n"
REQUESTS = (HEADER, HEADER + b"12345", HEADER[:40], b"GET /v1/state HTTP/1.1\r\nHost: node\r\n\r\n")
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def hang_up(path: str, request: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(request)


@pytest.mark.parametrize("request_sent", REQUESTS)
def test_clients_that_hang_up_at_once_leave_no_traceback(daemon, request_sent: bytes) -> None:
    node = daemon()
    clients = [
        threading.Thread(target=lambda: [hang_up(str(node.socket), request_sent) for _ in range(60)])
        for _ in range(4)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert node.state()["gpus"]
    assert "Traceback" not in node.log.read_text()
