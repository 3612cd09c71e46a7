# SPDX-License-Identifier: Apache-2.0
"""Reads variables and preloaded libraries of a container image through docker or podman."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from limiter.errors import GpulimitError

ENGINES = ("docker", "podman")
ABSENT = ("no such file", "could not find", "not found", "does not exist", "no such container path")
TIMEOUT_S = 60.0


class CannotAsk(GpulimitError):
    """The engine does not exist, or does not know the image."""


@dataclass(frozen=True, slots=True)
class Image:
    """Environment and /etc/ld.so.preload of an image."""

    environment: Mapping[str, str] = field(default_factory=dict)
    preload_file: str = ""


def ask(engine: str, image: str, *, with_file: bool) -> Image:
    """Return an image's settings.  Raises CannotAsk."""
    told = run(engine, "image", "inspect", "--format", "{{json .Config.Env}}", image)
    try:
        pairs = [text.partition("=") for text in json.loads(told) or []]
    except (ValueError, TypeError, AttributeError) as error:
        raise CannotAsk(f"{engine}: unexpected answer about image {image!r}: {told[:100]!r}") from error
    environment = {name: value for name, _, value in pairs}
    return Image(environment, preload_file(engine, image) if with_file else "")


def preload_file(engine: str, image: str) -> str:
    """Return an image's /etc/ld.so.preload, empty if it has none, from a container that is never started."""
    container = run(engine, "create", image, "true").decode().strip()
    try:
        data = run(engine, "cp", f"{container}:/etc/ld.so.preload", "-")
    except CannotAsk as error:
        if any(word in str(error).lower() for word in ABSENT):
            return ""
        raise
    finally:
        with contextlib.suppress(CannotAsk):
            run(engine, "rm", "-f", container)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            member = archive.extractfile(archive.getmembers()[0])
            return member.read().decode(errors="surrogateescape") if member else ""
    except (tarfile.TarError, IndexError) as error:
        raise CannotAsk(f"{engine} cp: unexpected answer about image {image!r}") from error


def run(engine: str, *arguments: str) -> bytes:
    """Run the engine; return its output."""
    shown = f"{engine} {' '.join(arguments[:2])}"
    try:
        done = subprocess.run([engine, *arguments], capture_output=True, timeout=TIMEOUT_S, check=False)
    except OSError as error:
        raise CannotAsk(f"{shown}: {error.strerror}; without --image nothing is asked") from error
    except subprocess.TimeoutExpired as error:
        raise CannotAsk(f"{shown}: no answer in {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"ended with {done.returncode}"
        raise CannotAsk(f"{shown}: {said}")
    return done.stdout
