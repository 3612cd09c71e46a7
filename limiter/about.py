# SPDX-License-Identifier: Apache-2.0
"""Name and version of the installed package."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "libgpulimit"
"""The package's name for pip, as in pyproject.toml: on the public index `gpulimit` is another project."""


def version(distribution: str = DISTRIBUTION) -> str:
    """Return the version of an installed distribution; a text instead for a checkout without installation."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def install_command(extra: str) -> str:
    """Return the command that installs the package with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
