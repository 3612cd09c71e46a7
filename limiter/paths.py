# SPDX-License-Identifier: Apache-2.0
"""Paths of the package's own files (library to preload, simulated driver, hook table) and of the socket.

`GPULIMIT_LIB_DIR` names another folder of the same shape; tests and developers use it to try a build.
"""

from __future__ import annotations

import os
from pathlib import Path

from limiter.errors import NotInstalled

LIBRARY = "libgpulimit.so"
DAEMON_SOCKET = "/run/gpulimit/hypervisor.sock"
"""The daemon's socket, unless GPULIMIT_SOCKET names another; as in csrc/daemon/address.c."""


def lib_dir() -> Path:
    """Return the folder that holds libgpulimit.so and sim/."""
    override = os.environ.get("GPULIMIT_LIB_DIR")
    return Path(override).absolute() if override else Path(__file__).parent / "_lib"


def library() -> Path:
    """Return the path of libgpulimit.so; raise NotInstalled if it was not built."""
    return existing(lib_dir() / LIBRARY)


def preload_hook() -> Path:
    """Return the path of the hook for container runtimes; raise NotInstalled if it was not built."""
    return existing(lib_dir() / "preload-hook")


def simulated_driver() -> Path:
    """Return the folder of the simulated libcuda.so.1; raise NotInstalled if it was not built."""
    return existing(lib_dir() / "sim" / "libcuda.so.1").parent


def hook_table() -> Path:
    """Return the path of hooks.def, the table of the calls that the library replaces."""
    return existing(lib_dir() / "hooks.def")


def existing(path: Path) -> Path:
    """Return `path` if it exists; else raise NotInstalled, which says how to get it."""
    if not path.exists():
        raise NotInstalled(f"{path} is missing; install the package again (`pip install .`), or `make build`")
    return path
