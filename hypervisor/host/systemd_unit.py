# SPDX-License-Identifier: Apache-2.0
"""Which systemd unit a process is in, by the text of its /proc/<pid>/cgroup. Pure."""

from __future__ import annotations

from functools import lru_cache

KINDS = (".service", ".scope")
MANAGER = "init.scope"


@lru_cache(maxsize=1024)  # asked for every process again and again, and many are in one
def unit_of(text: str) -> str:
    """Return the innermost service or scope, "train.service"; nothing where there is none.

    A user's own service is told, not the `user@1000.service` around it.
    """
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    for path in sorted(paths, key=len, reverse=True):
        for part in reversed(path.split("/")):
            if part.endswith(KINDS) and part != MANAGER:
                return part
    return ""
