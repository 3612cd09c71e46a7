# SPDX-License-Identifier: Apache-2.0
"""What manifests are checked with, as get_tools.sh leaves it (make manifest-tools), or what is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
Object = dict[str, Any]
HERE = Path(__file__).parent
TIMEOUT_S = 50


@cache
def folder() -> Path:
    done = subprocess.run(
        ["bash", str(HERE / "get_tools.sh"), "--where"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return Path(done.stdout.strip())


def program(name: str) -> str:
    """Return the path of helm or kubectl; skip where there is none."""
    own = folder() / "bin" / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: make manifest-tools")
    return found


def run(argv: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def objects(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


def kustomize(path: Path) -> list[Object]:
    done = run([program("kubectl"), "kustomize", str(path)])
    if done.returncode != 0 and "unknown" in done.stderr:
        pytest.skip(f"this kubectl cannot: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def helm(chart: Path, values: Object | None = None) -> list[Object]:
    """Return what the chart makes with these values on top of its own. AssertionError: it refuses them."""
    command = [
        program("helm"),
        "template",
        "gpulimit",
        str(chart),
        "--namespace",
        "gpulimit",
        "--values",
        "-",
    ]
    done = run([*command, "--api-versions=monitoring.coreos.com/v1"], yaml.safe_dump(values or {}))
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def complaints(version: str, *files: Path) -> str:
    """Return what the schemas of a version of Kubernetes have against files; "": nothing."""
    where = folder() / "schemas"
    if not (where / "kubernetes_validate").exists():
        pytest.skip("no schemas of Kubernetes: make manifest-tools")
    argv = [sys.executable, "-m", "kubernetes_validate", "--strict", "--quiet", "-k", version]
    done = subprocess.run(
        [*argv, *map(str, files)],
        env={**os.environ, "PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or said, done
    return "" if done.returncode == 0 else said
