# SPDX-License-Identifier: Apache-2.0
"""The package as people install it: into a fresh environment, from the sources alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with the package, from a copy of what git knows."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    source.mkdir()
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(
        ["tar", "-c", "--null", "-T", "-", "-f", folder / "source.tar"], cwd=ROOT, input=files, check=True
    )
    subprocess.run(["tar", "-x", "-f", folder / "source.tar", "-C", source], check=True)
    # What the package needs at run time is here already; only the package itself is to be built.
    quiet(sys.executable, "-m", "venv", "--system-site-packages", folder / "venv")
    bin_dir: Path = folder / "venv" / "bin"
    here = next(p for p in sys.path if p.endswith("site-packages"))
    lib = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (lib / "here.pth").write_text(f"{here}\n")
    quiet(bin_dir / "python", "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", source)
    return bin_dir


def quiet(*argv: object) -> None:
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def clean_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("GPULIMIT_", "LD_", "PYTHONPATH"))}


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
    command = [
        "run",
        "--sim",
        "--memory",
        "2GiB",
        "--",
        installed / "gpulimit",
        "load",
        "--json",
        "--grow",
        "1GiB",
    ]
    done = run_process([installed / "gpulimit", *command, "--seconds", "1"], env=env, cwd=tmp_path, expect=0)
    result = json.loads(done.stdout)
    assert result["memory_refused"] >= 1
    assert result["memory_bytes"] == 1 << 30


def test_the_source_distribution_can_be_built_from(tmp_path: Path) -> None:
    quiet(sys.executable, "-c", BUILD_SDIST, ROOT, tmp_path)
    (archive,) = tmp_path.glob("gpulimit-*.tar.gz")
    names = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True, check=True).stdout
    for needed in (
        "csrc/hooks.def",
        "csrc/Makefile",
        "csrc/sim/Makefile",
        "csrc/sim/profiles/h100.profile",
        "setup.py",
    ):
        assert f"/{needed}\n" in names
    assert ".so" not in names


BUILD_SDIST = """
import os, sys
from setuptools import build_meta
os.chdir(sys.argv[1])
build_meta.build_sdist(sys.argv[2])
"""
