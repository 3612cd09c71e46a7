# SPDX-License-Identifier: Apache-2.0
"""Installs the library in a folder that containers mount from, so that an upgrade never changes a file in
use.

As in `library_install`, each build has its own name and appears atomically. Here an earlier build stays as
long as a container uses it, even if the container does not run: it is restarted with that path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from limiter.container_edits import LIBRARY_IN_CONTAINER
from limiter.errors import GpulimitError

PREFIX, SUFFIX = "libgpulimit-", ".so"
PRELOAD, DAEMON, HOOK = "ld.so.preload", "daemon", "preload-hook"
TEST_TIMEOUT_S = 10
MODE, PROGRAM_MODE = 0o644, 0o755


class NotPlaced(GpulimitError):
    """The library cannot be installed or used in its folder."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Paths of the files on the node."""

    library: Path
    preload: Path
    """File that containers get as /etc/ld.so.preload."""
    daemon: Path
    """File with the path of the daemon's socket."""


def place(library: Path, folder: Path, socket: str) -> Placed:
    """Install the library and its files in a folder, if they are missing, and check the library.

    Raises NotPlaced.
    """
    try:
        content = library.read_bytes()
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # The name depends on the content, not on the build id: a stripped file has the same build id.
        name = f"{PREFIX}{hashlib.sha256(content).hexdigest()[:16]}{SUFFIX}"
        placed = Placed(folder / name, folder / PRELOAD, folder / DAEMON)
        put(placed.library, content)
        put(placed.preload, f"{LIBRARY_IN_CONTAINER}\n".encode())
        put(placed.daemon, f"{socket}\n".encode())
    except OSError as error:
        raise NotPlaced(f"{error.filename or folder}: {error.strerror}") from error
    check(placed.library)
    return placed


def place_hook(program: Path, folder: Path) -> Path:
    """Install the hook program for container runtimes in the folder; return its path. Raises NotPlaced.

    All builds use one name: the hook depends on no other file, and specifications keep its name for a long
    time.
    """
    placed = folder / HOOK
    try:
        content = program.read_bytes()
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        put(placed, content, PROGRAM_MODE)
    except OSError as error:
        raise NotPlaced(f"{error.filename or folder}: {error.strerror}") from error
    return placed


def put(path: Path, content: bytes, mode: int = MODE) -> None:
    """Create a file atomically with its whole content; a file that has it already stays."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        if not path.is_symlink() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
            return
    if path.is_dir() and not path.is_symlink():
        path.rmdir()  # container runtimes create a folder if a file to mount is missing
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(fresh).chmod(mode)
        Path(fresh).rename(path)
    except OSError:
        Path(fresh).unlink(missing_ok=True)
        raise


def check(library: Path) -> None:
    """Start a program with the library preloaded, and check that it is mapped. Raises NotPlaced.

    The loader only warns about an unusable library: a folder that is mounted noexec, a file of another
    architecture.
    """
    try:
        done = subprocess.run(
            ["/bin/cat", "/proc/self/maps"],
            env={"LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            timeout=TEST_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPlaced(f"{library}: no program can be started to try it: {error}") from error
    if done.returncode != 0 or str(library) not in done.stdout:
        said = done.stderr.strip().splitlines()
        raise NotPlaced(f"{library} cannot be preloaded: {said[0] if said else 'it is not mapped'}")


def remove_unused(folder: Path, keep: Path, in_use: Iterable[bytes]) -> list[Path]:
    """Remove earlier builds that no container uses; return them.

    `in_use` holds texts that name the files in use, from the kubelet's checkpoint.
    """
    texts = list(in_use)
    old = [path for path in folder.glob(f"{PREFIX}*{SUFFIX}") if path != keep]
    unused = [path for path in old if not any(path.name.encode() in text for text in texts)]
    for path in unused:
        path.unlink(missing_ok=True)
    return unused
