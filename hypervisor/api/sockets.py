# SPDX-License-Identifier: Apache-2.0
"""Sockets that the daemon listens on: a Unix socket at a path, TCP sockets at an address."""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path

from hypervisor.config.settings import flag_of
from hypervisor.errors import ConfigError

logger = logging.getLogger(__name__)


def unix_socket(path: str) -> socket.socket:
    """Return a socket listening at `path`. It appears in one step: no client meets a half-made one.

    Every process may connect: its rights follow from its user. Raises ConfigError.
    """
    place = Path(path)
    fresh = place.with_name(f".{place.name}.new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    if is_listened_on(path):
        listener.close()
        raise ConfigError(
            "socket", "", f"{path}: another daemon listens there; give this one its own --socket"
        )
    try:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        listener.bind(str(fresh))
        fresh.chmod(0o666)
        fresh.rename(place)
    except OSError as error:
        listener.close()
        raise ConfigError("socket", "", f"{path}: {error.strerror or error}") from error
    return listener


def tcp_sockets(address: str, key: str) -> list[socket.socket]:
    """Return sockets bound to HOST:PORT, one for each address of the host. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, number, _, place in dict.fromkeys(found):
            one = socket.socket(family, kind, number)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(place)
    except OSError as error:
        for one in made:
            one.close()
        reason = f"cannot listen on {address}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            reason += f"; give this daemon its own address with {flag_of(key)}"
        raise ConfigError(key, "", reason) from error
    return made


def is_listened_on(path: str) -> bool:
    """True if a process listens on a Unix socket, also if its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        try:
            client.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def warn_of_open_metrics(address: str) -> None:
    """Log a warning if metrics, which name tenants, can be read from other machines."""
    host = address.rpartition(":")[0].strip("[]")
    if host in ("", "0.0.0.0", "::"):  # noqa: S104
        logger.warning(
            "metrics on %s name tenants, users and commands to all machines that reach this one; "
            "--metrics-addr 127.0.0.1:PORT keeps them here",
            address,
        )
