# SPDX-License-Identifier: Apache-2.0
"""Puts the library where containers can mount it from, so that an upgrade never changes a file in use.

As on a `shelf`, each build has a name of its own and appears there in one step. But those of earlier builds
stay as long as a container was given one, whether it runs or not: it is started again with that path.
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
    """The library cannot be put, or used, where it should be."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Paths of the files on the node."""

    library: Path
    preload: Path
    """File that containers get as /etc/ld.so.preload."""
    daemon: Path
    """Says where the daemon's socket is."""


def place(library: Path, folder: Path, socket: str) -> Placed:
    """Put the library and the files that go with it into a folder, if they are not there yet, and try the
    library. Raises NotPlaced.
    """
    try:
        content = library.read_bytes()
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # By content and not by build id: a stripped file has the same.
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
    """Put the program that container runtimes start into the folder; return it. Raises NotPlaced.

    By one name for all builds: it takes nothing from us, and specifications name it for long.
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
    """Make a file appear with its whole content; one that has it already is left as it is."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        if not path.is_symlink() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
            return
    if path.is_dir() and not path.is_symlink():
        path.rmdir()  # runtimes make one where a file to mount was missing
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
    """Start a program with the library preloaded, and see that it is mapped. Raises NotPlaced.

    The loader only warns of a library that it cannot use: a folder mounted noexec, another machine's file.
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
    """Remove earlier builds that no container was given; return them.

    `in_use`: texts that name the files in use, as the kubelet keeps them.
    """
    texts = list(in_use)
    old = [path for path in folder.glob(f"{PREFIX}*{SUFFIX}") if path != keep]
    unused = [path for path in old if not any(path.name.encode() in text for text in texts)]
    for path in unused:
        path.unlink(missing_ok=True)
    return unused
