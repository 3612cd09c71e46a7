# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the daemon: one socket, one tenant, and whatever manners a test wants.

It answers as the daemon does unless `manners` says otherwise, and leaves what the policy allows and grants to
the test. Stopping it takes the socket away; `start` brings it back, as one that has forgotten its workers.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limiter._native import ffi, lib

SHM = Path("/dev/shm")
REQUEST = re.compile(rb"(GET|POST) (\S+) HTTP/1\.1\r\n", re.ASCII)
LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n", re.IGNORECASE)
Manners = Callable[["Daemon", str, str, bytes], bytes | None]
"""(daemon, method, path, body) -> raw bytes to answer with; None: as usual. b"" hangs up."""


class Segment:
    """A file in /dev/shm, mapped as a C structure."""

    def __init__(self, name: str, kind: str, mode: int) -> None:
        self.path = SHM / name
        size = ffi.sizeof(f"struct {kind}")
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, mode)
        try:
            os.fchmod(fd, mode)
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.c: Any = ffi.from_buffer(f"struct {kind} *", self._map, require_writable=True)

    def close(self) -> None:
        ffi.release(self.c)
        self._map.close()
        self.path.unlink(missing_ok=True)


class Daemon:
    def __init__(self, path: Path, tenant: str, *, uuids: list[bytes]) -> None:
        self.path, self.tenant = path, tenant
        self.usage = Segment(f"gpulimit.u.{tenant}", "gl_usage", 0o600)
        lib.gl_node_usage_begin(self.usage.c, tenant.encode(), 1)
        self.policy = self.new_policy(uuids)
        self.manners: Manners = lambda *_: None
        self.source = "config"
        self.registrations: list[dict[str, Any]] = []
        self.pids: list[int] = []
        self.results: list[dict[str, Any]] = []
        self.polls: list[str] = []
        self.workers: dict[int, str] = {}
        self.commands: list[tuple[int, str]] = []
        self.changed = threading.Condition()
        self.is_beating = True
        self._generation = 0
        self._stop = threading.Event()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def new_policy(self, uuids: list[bytes]) -> Segment:
        policy = Segment(f"gpulimit.p.{self.tenant}", "gl_policy", 0o644)
        lib.gl_node_policy_begin(policy.c, self.tenant.encode(), 1)
        self.policy = policy
        for index, uuid in enumerate(uuids):
            entry = policy.c.device[index]
            entry.uuid = uuid
            self.allow(index, memory_bytes=80 << 30, percent=100)
        self.beat()
        return policy

    def allow(
        self, index: int = 0, *, memory_bytes: int | None = None, percent: int = 0, **fields: int
    ) -> None:
        wanted = ffi.new("struct gl_policy_device *", self.policy.c.device[index])
        wanted.ready = 1
        if memory_bytes is not None:
            wanted.memory_limit_bytes = memory_bytes
        wanted.compute_limit_percent = percent or wanted.compute_limit_percent
        for name, value in fields.items():
            setattr(wanted, name, value)
        assert lib.gl_node_policy_allow(self.policy.c, index, wanted) == 0

    def grant(
        self, granted_ns: int, *, run_ahead_ns: int = 0, start_ns: int = 0, shared: int = 1, index: int = 0
    ) -> None:
        values = ffi.new("struct gl_grant *", (granted_ns, run_ahead_ns, 0, start_ns, shared, 0))
        assert lib.gl_node_policy_grant(self.policy.c, index, values) == 0

    def spent_ns(self, index: int = 0) -> int:
        return int(self.usage.c.device[index].spent_ns)

    def beat(self) -> None:
        lib.gl_node_policy_heartbeat(self.policy.c, time.monotonic_ns(), 1)

    # -- life --

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._generation += 1
        self.workers.clear()
        self._stop.clear()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(128)
        listener.settimeout(0.1)
        self._listener = listener
        self.beat()
        self._threads = [
            threading.Thread(target=self.accept, args=(listener,), daemon=True),
            threading.Thread(target=self.heart, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        with self.changed:
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(10)
        if self._listener:
            self._listener.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.stop()
        self.usage.close()
        self.policy.close()

    def heart(self) -> None:
        while not self._stop.wait(0.1):
            if self.is_beating:
                self.beat()

    # -- talking --

    def accept(self, listener: socket.socket) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = int.from_bytes(raw[:4], "little")
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536) or b"\r\n\r\n"
            head, body = data.split(b"\r\n\r\n", 1)
            found = LENGTH.search(head + b"\r\n")
            while found and len(body) < int(found.group(1)):
                body += connection.recv(65536)
            request = REQUEST.match(head)
            if not head:
                return  # it ended before it asked
            assert request, head
            method, path = request.group(1).decode(), request.group(2).decode()
            answer = self.manners(self, method, path, body)
            if answer is None:
                answer = self.answer(method, path, body, pid)
            for start in range(0, len(answer), 60):  # in pieces, as it may come
                connection.sendall(answer[start : start + 60])

    def answer(self, method: str, path: str, body: bytes, pid: int) -> bytes:
        if (method, path) == ("POST", "/v1/workers"):
            return self.register(json.loads(body), pid)
        worker = path.split("/")[3]
        if worker not in self.workers.values():
            return response(404)
        if path.endswith("/results"):
            self.results.append(json.loads(body))
            return response(204)
        return self.command(path)

    def register(self, body: dict[str, Any], pid: int) -> bytes:
        self.registrations.append(body)
        self.pids.append(pid)
        self.workers.setdefault(pid, f"w{self._generation}-{pid}")
        return response(200, self.headers(pid), b'{"tenant": "x"}')

    def headers(self, pid: int) -> dict[str, str]:
        return {
            "Gpulimit-Worker": self.workers[pid],
            "Gpulimit-Host-Pid": str(pid),
            "Gpulimit-Tenant": self.tenant,
            "Gpulimit-Usage": f"gpulimit.u.{self.tenant}",
            "Gpulimit-Policy": f"gpulimit.p.{self.tenant}",
            "Gpulimit-Source": self.source,
        }

    def command(self, path: str) -> bytes:
        self.polls.append(path)
        after = int(path.split("after=")[1].split("&")[0])
        with self.changed:
            self.changed.wait_for(lambda: self._stop.is_set() or self.after(after), 25)
        if self._stop.is_set():
            return b""
        number, name = self.after(after) or (0, "")
        return response(200, {"Gpulimit-Command": f"{number} {name}"}) if name else response(204)

    def after(self, number: int) -> tuple[int, str] | None:
        return next((c for c in self.commands if c[0] > number), None)

    def tell(self, name: str) -> int:
        """Send every worker a command; return its number."""
        with self.changed:
            self.commands.append((len(self.commands) + 1, name))
            self.changed.notify_all()
        return len(self.commands)


def response(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in (headers or {}).items())]
    if status != 204:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
