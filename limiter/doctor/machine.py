# SPDX-License-Identifier: Apache-2.0
"""Checks that need no GPU: this package's files, the C library, shared memory."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from limiter import about, paths
from limiter.doctor.check import Check, fail, ok, warn
from limiter.errors import NotInstalled
from limiter.units import show_bytes

SHM = Path("/dev/shm")
SHM_ENOUGH_BYTES = 32 << 20
OLDEST_GLIBC = (2, 17)


def checks() -> Iterator[Check]:
    """Run all checks that need no GPU."""
    yield versions()
    yield c_library()
    yield shared_memory()
    yield library()
    yield preloading()


def versions() -> Check:
    system = f"Python {platform.python_version()}, Linux {platform.release()}, {platform.machine()}"
    return ok("versions", f"gpulimit {about.version()}, {system}")


def c_library() -> Check:
    name, version = platform.libc_ver()
    if name != "glibc":
        return ok("C library", "not glibc; the library runs on musl as well")
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < OLDEST_GLIBC:
        return fail("C library", f"glibc {version}", "2.17 or later is needed; use a newer image")
    return ok("C library", f"glibc {version}")


def shared_memory() -> Check:
    name = str(SHM)
    try:
        with tempfile.NamedTemporaryFile(dir=SHM, prefix="gpulimit-doctor-"):
            pass
    except OSError as error:
        advice = "quotas are kept there: mount a tmpfs on it that tenants can write to"
        return fail(name, f"cannot be written: {error.strerror}", advice)
    state = os.statvfs(SHM)
    free = state.f_bavail * state.f_frsize
    text = f"writable, {show_bytes(free)} free of {show_bytes(state.f_blocks * state.f_frsize)}"
    if free < SHM_ENOUGH_BYTES:
        return warn(
            name, text, "a tenant may need a few MiB: enlarge it (docker run --shm-size, an emptyDir)"
        )
    return ok(name, text)


def library() -> Check:
    name = paths.LIBRARY
    try:
        path = paths.library()
    except NotInstalled as error:
        return fail(name, str(error), "install the package again")
    done = subprocess.run(
        ["/bin/true"],
        env={"LD_PRELOAD": str(path)},
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    if done.returncode != 0 or done.stderr:
        said = done.stderr.strip() or f"status {done.returncode}"
        return fail(
            name, f"{path} does not load: {said}", "it may be built for another machine: install again"
        )
    return ok(name, f"{path} loads")


def preloading() -> Check:
    already = os.environ.get("LD_PRELOAD", "")
    others = [p for p in already.replace(" ", ":").split(":") if p and Path(p).name != paths.LIBRARY]
    if others:
        advice = (
            "a library that also takes over driver calls has to come before ours, where `gpulimit run` has it"
        )
        return warn("LD_PRELOAD", f"others are preloaded too: {', '.join(others)}", advice)
    return ok("LD_PRELOAD", "nothing else is preloaded")
