# SPDX-License-Identifier: Apache-2.0
"""Which version this is."""

from __future__ import annotations

from importlib import metadata


def version(distribution: str = "gpulimit") -> str:
    """Return the version of an installed distribution; a checkout that is not installed has none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"
