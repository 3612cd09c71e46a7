# SPDX-License-Identifier: Apache-2.0
"""Names of users and containers, from local files of this host only: a name service could block."""

from __future__ import annotations

import json
from pathlib import Path

PASSWD = Path("/etc/passwd")
DOCKER = Path("/var/lib/docker/containers")
MAX_CACHED_NAMES = 1024


class Names:
    """Looks up names, and caches them."""

    def __init__(self, passwd: Path = PASSWD, docker: Path = DOCKER) -> None:
        self._passwd = passwd
        self._docker = docker
        self._users: dict[int, str] = {}
        self._users_at_ns = -1
        self._containers: dict[str, str] = {}

    def user(self, uid: int) -> str:
        """Return a local user's name; other users keep their number, since no name service is asked."""
        try:
            at_ns = self._passwd.stat().st_mtime_ns
            if at_ns != self._users_at_ns:
                self._users = users_in(self._passwd.read_text(errors="replace"))
                self._users_at_ns = at_ns
        except OSError:
            pass
        return self._users.get(uid, str(uid))

    def container(self, container_id: str) -> str:
        """Return a Docker container's name; "" if it is not known."""
        known = self._containers.get(container_id)
        if known is not None:
            return known
        if len(self._containers) >= MAX_CACHED_NAMES:
            self._containers.clear()
        name = ""
        try:
            config = json.loads((self._docker / container_id / "config.v2.json").read_bytes())
            name = str(config["Name"]).removeprefix("/")
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self._containers[container_id] = name
        return name


def users_in(text: str) -> dict[int, str]:
    """Return names by uid; the first entry of a uid counts."""
    users: dict[int, str] = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdecimal():
            users.setdefault(int(fields[2]), fields[0])
    return users
