# SPDX-License-Identifier: Apache-2.0
"""What hostile programs speak with: HTTP by hand on sockets that they may keep, share or cut, and forks with
a chosen pid.

Standard library only, and no import of the product: it runs as users who cannot read the checkout.
`conftest.attack` puts it before each program's text.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = json.loads(os.environ.get("ATTACK", "{}"))
"""`socket`: the daemon's; `version`: of the layout; `layout`: sizes and offsets of what segments hold."""
SYS_CLONE3 = 435
SIGCHLD = 17


def say(**facts: Any) -> None:
    """Tell the test something: one JSON object a line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def hear() -> Any:
    """Return what the test says next."""
    return json.loads(sys.stdin.readline())


def dial(path: str = "", *, port: int = 0) -> socket.socket:
    """Return a connection to the daemon: to its Unix socket, or to a port of this host."""
    if port:
        made = socket.create_connection(("127.0.0.1", port))
    else:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path or SETTINGS["socket"])
    made.settimeout(20)
    return made


def request(method: str, target: str, body: Any = None, *, token: str = "", headers: str = "") -> bytes:
    """Return a request as it goes over the wire."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
    head += f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{head}{headers}\r\n".encode("utf-8", "surrogatepass") + raw


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], Any, list[int]]:
    """Return status, headers, JSON (or text) and the files that came along; status 0: it hung up."""
    data, files = b"", []
    while True:
        while b"\r\n\r\n" not in data:
            try:
                some, control, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(8 * 4))
            except ConnectionError:
                some, control = b"", []
            for _, _, raw in control:
                numbers = array.array("i")
                numbers.frombytes(raw[: len(raw) - len(raw) % 4])
                files += numbers
            if not some:
                return 0, {}, data.decode(errors="replace"), files
            data += some
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin1").split("\r\n")
        status = int(lines[0].split()[1])
        if status >= 200:
            break
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    while len(data) < int(headers.get("content-length", 0)):
        some = connection.recv(65536)
        if not some:
            break
        data += some
    try:
        return status, headers, json.loads(data), files
    except ValueError:
        return status, headers, data.decode(errors="replace"), files


def ask(
    method: str, target: str, body: Any = None, *, on: socket.socket | None = None, **more: Any
) -> tuple[int, dict[str, str], Any]:
    """Ask the daemon; `on`: a connection that stays open."""
    connection = on or dial(port=more.pop("port", 0))
    try:
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(request(method, target, body, **more))
        return read_answer(connection)[:3]
    finally:
        if on is None:
            connection.close()


def wish(tenant: str = "", environment: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """Return what a process says when it registers."""
    said = {"version": SETTINGS["version"], "pid": os.getpid(), "start_ticks": ticks(), "name": "attack"}
    return {**said, "tenant": tenant, "environment": environment or {}, **more}


def register(
    tenant: str = "",
    environment: dict[str, str] | None = None,
    *,
    on: socket.socket | None = None,
    **more: Any,
) -> tuple[int, dict[str, str], Any]:
    """Register this process."""
    return ask("POST", "/v1/workers", wish(tenant, environment, **more), on=on)


def ticks(pid: int | str = "self") -> int:
    """Return when a process started."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def become(uid: int, gid: int | None = None) -> None:
    """Drop to a user for good, with no groups."""
    os.setgroups([])
    os.setresgid(*(uid if gid is None else gid,) * 3)
    os.setresuid(uid, uid, uid)


def fork_as(pid: int) -> int:
    """Fork a child that gets this pid; as fork() otherwise. Raises OSError: without CAP_SYS_ADMIN, or while
    the number is in use.
    """
    numbers = (ctypes.c_int32 * 1)(pid)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, …
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, SIGCHLD, 0, 0, 0, ctypes.addressof(numbers), 1, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    got = int(libc.syscall(SYS_CLONE3, arguments, ctypes.c_size_t(88)))
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got
