# SPDX-License-Identifier: Apache-2.0
"""Fixtures for libgpupath.so: the built library, and a loader that preloads it without LD_PRELOAD."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).resolve().parent.parent / "c" / "path" / "probe.c"
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}


@pytest.fixture(scope="session")
def library(built: Any) -> Path:
    """libgpupath.so"""
    path: Path = built.path_library
    return path


@pytest.fixture(scope="session")
def loader() -> Path:
    """The loader, as a program: its --preload leaves the environment alone."""
    path = Path(LOADERS.get(platform.machine(), "/no/loader"))
    if not path.exists():
        pytest.skip(f"SKIPPED: no glibc loader for {platform.machine()}")
    return path


@pytest.fixture(scope="session")
def probe(compile_c: Any) -> Path:
    """tests/c/path/probe.c"""
    path: Path = compile_c(PROBE, "-Wall", "-Wextra", "-Werror", name="path-probe")
    return path
