# SPDX-License-Identifier: Apache-2.0
"""The version and the date of what is being released.

    python -m release.version            # prints it
    python -m release.version 0.2.0      # sets it, in pyproject.toml and where a file must name it

The version is that of pyproject.toml; a test compares the other places. The date is SOURCE_DATE_EPOCH, else
that of the last commit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)(0|[1-9]\d*))?")
# File names, image tags, the chart: what cannot read pyproject.toml.
NAMED = re.compile(
    r"((?:\b(?:lib)?gpulimit[-:_]|^ *newTag: |^version: |^appVersion: )\"?)(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)",
    re.MULTILINE,
)
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


def places(root: Path = ROOT) -> Iterator[Path]:
    """Yield the files that may name the version."""
    yield root / "README.md"
    for folder, pattern in (("docs", "*.md"), ("deploy", "**/*")):
        yield from (path for path in sorted((root / folder).glob(pattern)) if path.is_file())


def named(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the versions that each of these files names."""
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in places(root)}
    found = {name: {match[2] for match in NAMED.finditer(text)} for name, text in texts.items()}
    return {name: versions for name, versions in found.items() if versions}


def set_version(fresh: str, root: Path = ROOT) -> None:
    """Write another version into pyproject.toml and every file that names it.  Raises ValueError."""
    if not SEMANTIC.fullmatch(fresh):
        raise ValueError(f"{fresh!r} is not MAJOR.MINOR.PATCH, with a1, b1 or rc1 at most")
    now, project = version(root), root / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    project.write_text(
        text.replace(f'\nversion = "{now}"\n', f'\nversion = "{fresh}"\n', 1), encoding="utf-8"
    )
    for path in places(root):
        text = path.read_text(encoding="utf-8")
        # Another version is an example, as of an upgrade.
        changed = NAMED.sub(lambda match: match[1] + (fresh if match[2] == now else match[2]), text)
        if changed != text:
            path.write_text(changed, encoding="utf-8")


def main(arguments: list[str]) -> int:
    try:
        if arguments:
            set_version(arguments[0])
        print(version())
    except ValueError as error:
        print(f"release.version: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
