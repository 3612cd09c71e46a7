# SPDX-License-Identifier: Apache-2.0
"""Finds the systemd unit of a process in the text of its /proc/<pid>/cgroup. Pure."""

from __future__ import annotations

from functools import lru_cache

KINDS = (".service", ".scope")
MANAGER = "init.scope"


@lru_cache(maxsize=1024)  # called repeatedly for every process, and many processes share a unit
def unit_of(text: str) -> str:
    """Return the innermost service or scope, such as "train.service"; "" if there is none.

    For a user's own service it returns that service, not the `user@1000.service` around it.
    """
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    for path in sorted(paths, key=len, reverse=True):
        for part in reversed(path.split("/")):
            if part.endswith(KINDS) and part != MANAGER:
                return part
    return ""
