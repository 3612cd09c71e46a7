# SPDX-License-Identifier: Apache-2.0
"""The arguments of `gpulimit run --container`, taken literally: namespaces, mounts, environment as an engine
makes them, around a minimal Debian. No engine runs here; what engines do with the arguments is theirs.
"""

from __future__ import annotations

import re
import shlex
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from limiter import library_install, library_store

from ..conftest import ROOT
from . import root

SMALL = {"GPULIMIT_SIM_PROFILE": "small"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


@pytest.fixture
def reach(compile_c: Any) -> Path:
    tests = ROOT / "tests" / "c"
    path: Path = compile_c(
        tests / "ways" / "reach.c", "-D_GNU_SOURCE", f"-I{tests}", "-ldl", "-pthread", name="reach"
    )
    return path


class Engine:
    """Starts containers by the arguments that the command prints."""

    def __init__(self, gpulimit: Any, env: dict[str, str], folder: Path) -> None:
        self.gpulimit, self.env, self.folder = gpulimit, env, folder
        self.shelf = folder / "shelf"

    def arguments(self, *options: str, **more: str) -> list[str]:
        env = (
            {k: v for k, v in self.env.items() if k not in ("GPULIMIT_TENANT", "LD_LIBRARY_PATH")}
            | SMALL
            | more
        )
        argv = ("run", "--container", "--sim", "--lib-dir", str(self.shelf), *options)
        done = self.gpulimit(*argv, env=env, expect=0)
        out: list[str] = done.stdout.splitlines()
        return out

    def run(self, arguments: list[str], script: str, files: dict[str, Path], **image: str) -> str:
        """Start a container; `image` is the environment that its image sets."""
        mounts, environ = [], dict(image)
        for flag, value in zip(arguments[::2], arguments[1::2], strict=True):
            if flag == "-v":
                source, target, mode = value.split(":")
                assert mode == "ro"
                mounts.append((source, target))
            elif flag == "-e":
                name, _, text = value.partition("=")
                environ[name] = text
        exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in environ.items())
        # As an engine does: the environment is the first program's, not that of what prepares it.
        whole = f"{exports}exec sh -e -c {shlex.quote(script)}"
        work = self.folder / f"container-{time.monotonic_ns()}"
        work.mkdir()
        return root.run(whole, files, work, mounts=mounts, timeout=120)


@pytest.fixture
def engine(gpulimit: Any, sim_env: dict[str, str], tmp_path: Path) -> Engine:
    return Engine(gpulimit, sim_env | {"GPULIMIT_SOCKET": "/no/such/daemon.sock"}, tmp_path)


@pytest.mark.parametrize("options", [[], ["--preload-file"]], ids=["variable", "file"])
def test_a_container_is_held_to_its_quota(engine: Engine, reach: Path, options: list[str]) -> None:
    arguments = engine.arguments("--memory", "64MiB", *options)
    assert engine.run(arguments, "/mnt/reach handle", {"reach": reach}).split() == ["refused"]


def test_what_the_image_preloads_is_in_force_too(engine: Engine, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho '[\"LD_PRELOAD=libm.so.6 libresolv.so.2\"]'\n")
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    arguments = engine.arguments("--memory", "64MiB", "--image", "any", PATH=path)
    told = engine.run(arguments, "cat /proc/self/maps", {}, LD_PRELOAD="libm.so.6 libresolv.so.2")
    for library in ("/libgpulimit-", "/libm.so.6", "/libresolv.so.2"):
        assert library in told


def test_an_upgrade_reaches_new_programs_of_a_running_container(
    engine: Engine, built: Any, tmp_path: Path
) -> None:
    """And leaves those that run with the library that they have."""
    arguments = engine.arguments("--memory", "64MiB")
    installed = tmp_path / "installed"
    installed.mkdir()
    for name in library_install.LIBRARIES:
        shutil.copy(built.lib / name, installed / name)
    with (installed / "libgpulimit.so").open("ab") as file:
        file.write(b"another build")
    flags = tmp_path / "flags"
    flags.mkdir()
    script = """
    sleep 100 & sleeper=$!
    while ! grep libgpulimit /proc/$sleeper/maps; do sleep 0.1; done | sed 's/^/before /'
    touch /mnt/flags/started
    while [ ! -e /flags/upgraded ]; do sleep 0.1; done
    grep libgpulimit /proc/$sleeper/maps | sed 's/^/still /'
    grep libgpulimit /proc/self/maps | sed 's/^/new /'
    kill $sleeper
    """
    before = (engine.shelf / "libgpulimit.so").readlink()

    def upgrade() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if list(tmp_path.glob("container-*/mnt/flags/started")):
                # As the linker would: another build id means another name.
                fresh = engine.shelf / "libgpulimit-0123456789abcdef.so"
                library_store.put(fresh, (installed / "libgpulimit.so").read_bytes())
                library_install.switch(engine.shelf / "libgpulimit.so", fresh.name)
                (flags / "upgraded").touch()
                return
            time.sleep(0.05)

    upgrader = threading.Thread(target=upgrade)
    upgrader.start()
    arguments += ["-v", f"{flags}:/flags:ro"]
    told = engine.run(arguments, script, {"flags": flags})
    upgrader.join()
    assert set(re.findall(r"^(before|still) .*/(libgpulimit\S*)$", told, re.MULTILINE)) == {
        ("before", before.name),
        ("still", before.name),
    }
    assert set(re.findall(r"^new .*/(libgpulimit\S*)$", told, re.MULTILINE)) == {
        "libgpulimit-0123456789abcdef.so"
    }


def test_the_host_s_daemon_keeps_a_container_s_quota(
    engine: Engine,
    reach: Path,
    daemon: Any,
    daemon_env: dict[str, str],
    tmp_path: Path,
    tenant: str,
) -> None:
    """Through the mounted folder alone: the container has another /dev/shm and other pids."""
    config = tmp_path / "gpulimit.toml"
    config.write_text(f'[tenants.{tenant}]\nmemory = "64MiB"\n')
    running = daemon("--config", str(config), "--sim", env=daemon_env | SMALL)
    arguments = engine.arguments("--tenant", tenant, GPULIMIT_SOCKET=running.socket)
    assert engine.run(arguments, "/mnt/reach handle", {"reach": reach}).split() == ["refused"]
    assert running.tenant(tenant)["source"] == "config"
