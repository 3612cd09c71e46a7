# SPDX-License-Identifier: Apache-2.0
"""Builds the arguments with which docker or podman starts a container under quota.

The container gets the folder of libraries (limiter.library_install), read-only and under the same path.  So
an upgrade on the host reaches programs that start later.  It gets the folder of the daemon's socket, which
outlives the daemon, and its quota as environment.  The image's own preloaded libraries stay, before
gpulimit's.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from limiter import paths
from limiter.errors import UsageError
from limiter.image import Image
from limiter.paths import DAEMON_SOCKET

PRELOAD_FILE = "/etc/ld.so.preload"
# Variables for this process, not for the container.
OWN = ("GPULIMIT_LIB_DIR", "GPULIMIT_SOCKET", "GPULIMIT_SIM_STATE")
SIM_STATE = "/dev/shm/gpulimit-sim"


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of the container's start."""

    engine: str
    shelf: Path
    """Folder that already has the libraries."""
    gpus: Sequence[str] = ()
    devices: Sequence[str] = ()
    """CDI devices, passed to the engine instead of GPUs."""
    by_file: bool = False
    """True to preload by /etc/ld.so.preload, which also limits programs that clear their environment."""
    is_simulated: bool = False


def arguments(wish: Wish, environ: Mapping[str, str], image: Image) -> list[str]:
    """Return the arguments, in order.  Raises UsageError if one cannot pass through a shell's $(…)."""
    made = [*mount(wish.shelf), *preload(wish, image), *socket(environ)]
    for name, value in sorted(environ.items()):
        if name.startswith("GPULIMIT_") and name not in OWN:
            made += ["-e", f"{name}={value}"]
    made += simulated(image) if wish.is_simulated else gpus(wish)
    for text in made:
        if re.search(r"\s", text):
            raise UsageError(
                f"run --container: {text!r} has a blank, which the shell would split; write it without"
            )
    return made


def mount(source: Path, target: str | None = None) -> list[str]:
    return ["-v", f"{source}:{target or source}:ro"]


def entries(text: str) -> list[str]:
    """Return the entries of an LD_PRELOAD or a preload file; comments are skipped, as the loader does."""
    return re.sub(r"#[^\n]*", "", text).replace(":", " ").split()


def preload(wish: Wish, image: Image) -> list[str]:
    """Return arguments that preload the image's libraries, then libgpulimit.so."""
    library = str(wish.shelf / paths.LIBRARY)
    if wish.by_file:
        return mount(preload_file(wish.shelf, [*entries(image.preload_file), library]), PRELOAD_FILE)
    others = [entry for entry in entries(image.environment.get("LD_PRELOAD", "")) if entry != library]
    return ["-e", f"LD_PRELOAD={':'.join([*others, library])}"]


def preload_file(shelf: Path, libraries: Sequence[str]) -> Path:
    """Write a list of libraries under a name derived from its content: a mounted file must never change."""
    text = "".join(f"{library}\n" for library in dict.fromkeys(libraries))
    path = shelf / f"preload-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]}"
    if not path.exists():
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        fresh.write_text(text, errors="surrogateescape")
        fresh.chmod(0o644)
        fresh.replace(path)
    return path


def socket(environ: Mapping[str, str]) -> list[str]:
    """Return arguments that mount the socket's folder: a new daemon makes a new socket in it."""
    path = environ.get("GPULIMIT_SOCKET") or DAEMON_SOCKET
    if not path.startswith("/"):
        raise UsageError(f"GPULIMIT_SOCKET: {path!r} is not an absolute path")
    folder = Path(path).parent
    if not folder.is_dir():
        return []
    return [*mount(folder), *(["-e", f"GPULIMIT_SOCKET={path}"] if path != DAEMON_SOCKET else [])]


def gpus(wish: Wish) -> list[str]:
    """Return arguments for the container's GPUs: named CDI devices, else the chosen GPUs, else all."""
    if wish.devices:
        return [text for device in wish.devices for text in ("--device", device)]
    if wish.engine == "podman":
        return [text for gpu in wish.gpus or ["all"] for text in ("--device", f"nvidia.com/gpu={gpu}")]
    # Docker parses the value as CSV: the quotes keep the list in one field.
    return ["--gpus", f'"device={",".join(wish.gpus)}"' if wish.gpus else "all"]


def simulated(image: Image) -> list[str]:
    """Return arguments for the simulated driver, with a separate machine."""
    driver = paths.simulated_driver()
    libraries = ":".join([str(driver), *filter(None, [image.environment.get("LD_LIBRARY_PATH")])])
    return [*mount(driver), "-e", f"LD_LIBRARY_PATH={libraries}", "-e", f"GPULIMIT_SIM_STATE={SIM_STATE}"]
