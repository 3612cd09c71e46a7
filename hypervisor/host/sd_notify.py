# SPDX-License-Identifier: Apache-2.0
"""Tells systemd how the daemon is: sd_notify's protocol, one datagram a message."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(message: str) -> None:
    """Send "READY=1", "STOPPING=1", "WATCHDOG=1"…; does nothing outside systemd."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.connect("\0" + address[1:] if address.startswith("@") else address)
        client.send(message.encode())


def watchdog_s() -> float | None:
    """Return how often systemd wants to hear WATCHDOG=1, halved as it advises; None: never."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 2e6 if text.isdecimal() and int(text) > 0 else None
