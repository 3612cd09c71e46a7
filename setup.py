# SPDX-License-Identifier: Apache-2.0
"""Builds what setuptools cannot describe, libraries, hook and simulated driver, by csrc's makefiles.

They land in limiter/_lib, in the wheel or, for `pip install -e .`, in the tree.  GPULIMIT_SHIM_CFLAGS,
GPULIMIT_SHIM_LDFLAGS, GPULIMIT_SIM_CFLAGS and GPULIMIT_SIM_LDFLAGS add to the compiler's flags, and CC names
it; release/wheels.py sets them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class BuildNative(build_ext):
    """`build_ext`, and then csrc."""

    def run(self) -> None:
        super().run()
        in_place = self.inplace or self.editable_mode
        package = ROOT / "limiter" if in_place else Path(self.build_lib) / "limiter"
        # In place, share the folder that the tests build in; make then has little left to do.
        work = ROOT / "build" if in_place else Path(self.build_temp).absolute() / "csrc"
        work.mkdir(parents=True, exist_ok=True)
        with (work / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            make("csrc", work / "shim")
            make("csrc/path", work / "path")
            make("csrc/container", work / "container")
            make("csrc/sim", work / "sim")
        collect(work, package / "_lib")


def collect(work: Path, lib: Path) -> None:
    """Put what was built, and the files that go with it, into the package."""
    shutil.rmtree(lib, ignore_errors=True)
    install(work / "shim" / "libgpulimit.so", lib)
    install(work / "path" / "libgpupath.so", lib)
    install(work / "container" / "preload-hook", lib)
    install(ROOT / "csrc" / "hooks.def", lib)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        install(work / "sim" / name, lib / "sim")
    shutil.copytree(ROOT / "csrc" / "sim" / "profiles", lib / "sim" / "profiles")


def make(directory: str, out: Path) -> None:
    jobs = f"-j{min(4, os.cpu_count() or 1)}"
    if shutil.which("make") is None:
        raise SystemExit("gpulimit is built with make, which is not installed; a wheel needs no build")
    part = "SIM" if directory.endswith("sim") else "SHIM"
    given = {name: os.environ.get(f"GPULIMIT_{part}_{name}") for name in ("CFLAGS", "LDFLAGS")}
    given["CC"] = os.environ.get("CC")
    settings = [f"{name}={value}" for name, value in given.items() if value]
    # What setuptools takes from the environment is for the extension module alone.
    inherited = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "LDFLAGS", "CPPFLAGS")}
    argv = ["make", "-s", jobs, "-C", str(ROOT / directory), f"OUT={out}", *settings]
    subprocess.run(argv, env=inherited, check=True)


def install(source: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, directory)


setup(cffi_modules=["limiter/_native_build.py:ffibuilder"], cmdclass={"build_ext": BuildNative})
