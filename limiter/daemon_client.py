# SPDX-License-Identifier: Apache-2.0
"""Client of the node daemon for the command line: HTTP over its Unix socket, with the standard library
only.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Literal

from limiter.errors import GpulimitError
from limiter.paths import DAEMON_SOCKET

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20


class NoDaemon(GpulimitError):
    """No daemon answers on the socket."""

    def __init__(self, message: str, *, path: str, kind: Literal["missing", "refused", "silent"]) -> None:
        super().__init__(message)
        self.path = path
        self.kind = kind
        """missing: no such socket; refused: no process listens on it; silent: no answer arrives."""


class NodeRefused(GpulimitError):
    """The daemon refused a call; `str()` is its reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def socket_path() -> str:
    """Return the path of the daemon's socket: from the environment, else the default."""
    return os.environ.get("GPULIMIT_SOCKET") or DAEMON_SOCKET


def may_be_there() -> bool:
    """True if a program that starts now would contact a daemon: its library finds an address."""
    named = ("GPULIMIT_SOCKET", "HYPERVISOR_IP")
    return any(os.environ.get(name) for name in named) or Path(DAEMON_SOCKET).exists()


def answers() -> bool:
    """True if a process listens on the daemon's socket."""
    path = socket_path()
    if not Path(path).exists():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(path)
        except OSError:
            return False
    return True


def ask(method: str, target: str, body: object = None, *, path: str | None = None) -> Any:
    """Return the daemon's answer to a call, None if it has no body. Raises NoDaemon or NodeRefused.

    `path` is the daemon's socket, if not the one of the environment.
    """
    path = path or socket_path()
    connection = Connection(path)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER_BYTES)
    except FileNotFoundError as error:
        why = f"there is no daemon's socket {path}; GPULIMIT_SOCKET names another"
        raise NoDaemon(why, path=path, kind="missing") from error
    except ConnectionRefusedError as error:
        raise NoDaemon(f"no daemon listens on {path}", path=path, kind="refused") from error
    except (OSError, http.client.HTTPException) as error:
        why = f"the daemon on {path} does not answer: {error}"
        raise NoDaemon(why, path=path, kind="silent") from error
    finally:
        connection.close()
    try:
        data = json.loads(text) if text else None
    except ValueError as error:
        if answer.status < 400:
            why = f"what listens on {path} is no daemon of gpulimit: {error}"
            raise NoDaemon(why, path=path, kind="silent") from error
        data = {"error": text.decode(errors="replace").partition("\n")[0][:200]}
    if answer.status >= 400:
        reason = data.get("error") if isinstance(data, dict) else None
        raise NodeRefused(answer.status, str(reason or f"the daemon answered {answer.status}"))
    return data


def raise_if_silent(error: NoDaemon) -> None:
    """Raise the error again if a daemon exists but does not answer: only it knows its tenants."""
    if error.kind == "silent":
        raise error


def show_warnings(answer: object) -> None:
    """Print the warnings in the daemon's answer to a change."""
    warnings = answer.get("warnings", ()) if isinstance(answer, dict) else ()
    for warning in warnings:
        print(f"gpulimit: warning: {warning}", file=sys.stderr)


def state() -> dict[str, Any] | None:
    """Return the part of the daemon's state that this user may see; None if there is no daemon."""
    try:
        answer = ask("GET", "/v1/state")
    except NoDaemon:
        return None
    return answer if isinstance(answer, dict) else None
