# SPDX-License-Identifier: Apache-2.0
"""The package as people install it: source distribution, then an environment without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    "csrc/hooks.def",
    "csrc/Makefile",
    "csrc/sim/Makefile",
    "csrc/sim/profiles/h100.profile",
    "setup.py",
)
BUILD_SDIST = """
import os, sys
from setuptools import build_meta
os.chdir(sys.argv[1])
build_meta.build_sdist(sys.argv[2])
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    quiet(sys.executable, "-c", BUILD_SDIST, ROOT, folder)
    (path,) = folder.glob("libgpulimit-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def installed(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with the package, built from the source distribution."""
    venv = tmp_path_factory.mktemp("install") / "venv"
    quiet(sys.executable, "-m", "venv", "--without-pip", venv)
    # What the package needs is here already; only the package itself is to be built.
    here = next(p for p in sys.path if p.endswith("site-packages"))
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "here.pth").write_text(f"{here}\n")
    pip = (sys.executable, "-m", "pip", "-q", "--python", venv / "bin" / "python")
    quiet(*pip, "install", "--no-build-isolation", "--no-deps", "--ignore-installed", archive)
    return venv / "bin"


def quiet(*argv: object) -> None:
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def clean_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("GPULIMIT_", "LD_", "PYTHONPATH"))}


def test_the_source_distribution_is_whole_and_holds_nothing_built(archive: Path) -> None:
    names = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True, check=True).stdout.split()
    inside = {name.partition("/")[2] for name in names}
    assert set(NEEDED) <= inside
    assert not [name for name in inside if ".so" in name or name.startswith("build/")]


def test_the_command_finds_the_library_inside_the_package(
    installed: Path, run_process, tmp_path: Path
) -> None:
    done = run_process([installed / "gpulimit", "lib"], env=clean_env(), cwd=tmp_path, expect=0)
    path = Path(done.stdout.strip())
    assert path.exists()
    assert installed.parent in path.parents


def test_a_program_runs_under_quota_on_the_simulated_driver(
    installed: Path, run_process, tmp_path: Path
) -> None:
    env = clean_env() | {"GPULIMIT_SIM_STATE": str(tmp_path / "state")}
    gpulimit = installed / "gpulimit"
    load = (gpulimit, "load", "--json", "--grow", "1GiB", "--seconds", "1")
    done = run_process(
        [gpulimit, "run", "--sim", "--memory", "2GiB", "--", *load], env=env, cwd=tmp_path, expect=0
    )
    result = json.loads(done.stdout)
    assert result["memory_refused"] >= 1
    assert result["memory_bytes"] == 1 << 30
