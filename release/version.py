# SPDX-License-Identifier: Apache-2.0
"""The version and the date of what is being released.

The version stands in pyproject.toml and nowhere else; the date is SOURCE_DATE_EPOCH, else that of the last
commit.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)(0|[1-9]\d*))?")
# Of a tree that is in no repository: 2026-01-01, so that two builds still agree.
NO_DATE_S = 1767225600


def version(root: Path = ROOT) -> str:
    """Return the version: MAJOR.MINOR.PATCH, then perhaps a1, b1 or rc1.  Raises ValueError if it is none."""
    found = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if not SEMANTIC.fullmatch(found):
        raise ValueError(
            f"pyproject.toml: version {found!r} is not MAJOR.MINOR.PATCH, with a1, b1 or rc1 at most"
        )
    return str(found)


def epoch_s(root: Path = ROOT) -> int:
    """Return the date that everything built bears, in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    done = subprocess.run(
        ["git", "-C", root, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False
    )
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else NO_DATE_S
