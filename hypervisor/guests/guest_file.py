# SPDX-License-Identifier: Apache-2.0
"""The guests that a file names.

    node = "node-1"                      # the host's name, if left out

    [[guest]]
    namespace = "ml"                     # "default", if left out
    name = "trainer"
    address = "vsock://42:9402"          # or hvsock:///run/fc/trainer/v.sock:9402, unix://…, tcp://…
    token_file = "/etc/gpulimit/trainer.token"
    ca_file = "/etc/gpulimit/guests-ca.pem"
    server_name = "trainer"
    netns = "/run/netns/trainer"         # network namespace from which the address is reached

It is read again every few seconds. A file that cannot be read changes nothing, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import tomllib
from pathlib import Path

from hypervisor.errors import ConfigError
from hypervisor.guests.target import Target
from hypervisor.scraper.endpoint import endpoint_of
from hypervisor.scraper.errors import AddressError

logger = logging.getLogger(__name__)
PERIOD_S = 5.0
MAX_FILE_BYTES = 4 << 20
MAX_GUESTS = 4096
KEYS = {"namespace", "name", "address", "token_file", "ca_file", "server_name", "netns"}


class GuestFile:
    """A source of targets."""

    name = "file"

    def __init__(self, path: str, *, period_s: float = PERIOD_S) -> None:
        """Raises ConfigError: at the start, a file that cannot be read is a mistake."""
        self._path, self._period_s = Path(path), period_s
        self.targets = read_targets(self._path)
        self.confirmed_at_s = time.monotonic()
        self._trouble = ""

    @property
    def is_up(self) -> bool:
        return not self._trouble

    async def close(self) -> None:
        """Do nothing: the file is open only while it is read."""

    async def run(self) -> None:
        """Read it again, for ever."""
        while True:
            await asyncio.sleep(self._period_s)
            self.reread()

    def reread(self) -> None:
        """Take up what the file says now."""
        begin_s = time.monotonic()
        try:
            self.targets = read_targets(self._path)
        except ConfigError as error:
            if str(error) != self._trouble:
                logger.error("the list of guests stays as it was: %s", error)
            self._trouble = str(error)
            return
        self.confirmed_at_s, self._trouble = begin_s, ""


def read_targets(path: Path) -> tuple[Target, ...]:
    """Return what a file names. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError("guests", str(path), f"has more than {MAX_FILE_BYTES} bytes")
        data = tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError("guests", "", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("guests", str(path), str(error)) from error
    for key in data.keys() - {"node", "guest"}:
        raise ConfigError(key, str(path), "no such key")
    node, rows = data.get("node", socket.gethostname()), data.get("guest", [])
    if not isinstance(node, str) or not node:
        raise ConfigError("node", str(path), "is not a name")
    if not isinstance(rows, list) or len(rows) > MAX_GUESTS:
        raise ConfigError("guest", str(path), f"is not a list of at most {MAX_GUESTS} tables, [[guest]]")
    targets = tuple(target_of(row, f"guest[{number}]", str(path), node) for number, row in enumerate(rows))
    seen: set[tuple[str, str, str]] = set()
    for target in targets:
        if target.who in seen:
            raise ConfigError("guest", str(path), f"{target.namespace}/{target.name} is there twice")
        seen.add(target.who)
    return targets


def target_of(row: object, place: str, origin: str, node: str) -> Target:
    if not isinstance(row, dict):
        raise ConfigError(place, origin, "is not a table")
    for key, value in row.items():
        if key not in KEYS:
            raise ConfigError(f"{place}.{key}", origin, f"is none of {', '.join(sorted(KEYS))}")
        if not isinstance(value, str) or not value or not value.isprintable():
            raise ConfigError(f"{place}.{key}", origin, "is not text")
    for key in ("name", "address"):
        if key not in row:
            raise ConfigError(f"{place}.{key}", origin, "is missing")
    try:
        endpoint = endpoint_of(row["address"])
    except AddressError as error:
        raise ConfigError(f"{place}.address", origin, str(error)) from error
    return Target(
        namespace=row.get("namespace", "default"),
        name=row["name"],
        node=node,
        endpoint=endpoint,
        token_file=row.get("token_file", ""),
        ca_file=row.get("ca_file", ""),
        server_name=row.get("server_name", ""),
        netns=row.get("netns", ""),
    )
