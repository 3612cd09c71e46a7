# SPDX-License-Identifier: Apache-2.0
"""The package's name for pip, wherever it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from limiter import about

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# `pip install NAME`, `pip install 'NAME[EXTRA]'`, or an extra of a name that holds ours.
NAMED = re.compile(r"pip3? install '?(\w*gpulimit\w*)|(\w*gpulimit)\[(?:k8s|top|dev)\]")


def test_the_name_in_the_code_is_that_of_the_project() -> None:
    assert PROJECT["name"] == about.DISTRIBUTION
    assert about.version() == metadata.version(PROJECT["name"]) == PROJECT["version"]


def test_an_extra_is_installed_by_the_project_s_name() -> None:
    assert about.install_command("k8s") == "pip install 'libgpulimit[k8s]'"
    assert "k8s" in PROJECT["optional-dependencies"] and "top" in PROJECT["optional-dependencies"]


def texts() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml")
    for folder in ("deploy", "docs", "hypervisor", "limiter", "release"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix not in (".so", ".pyc"))


def test_no_text_installs_another_project() -> None:
    wrong = []
    for path in filter(Path.is_file, texts()):
        found = NAMED.finditer(path.read_text(encoding="utf-8", errors="replace"))
        wrong += [(path, m[0]) for m in found if (m[1] or m[2]) != PROJECT["name"]]
    assert not wrong
