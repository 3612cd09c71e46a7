# SPDX-License-Identifier: Apache-2.0
"""Secrets that requests must bear, in files."""

from __future__ import annotations

from pathlib import Path

from hypervisor.errors import ConfigError


def read_token(path: str, key: str) -> str:
    """Return the token in a file that only its owner can read. Raises ConfigError, which names `key`."""
    place = Path(path)
    try:
        token = place.read_text(encoding="ascii").strip()
        mode = place.stat().st_mode
    except (OSError, ValueError) as error:
        raise ConfigError(key, "", f"{path}: {error}") from error
    if mode & 0o077:
        raise ConfigError(key, "", f"{path}: others may read it; chmod 600")
    if len(token) < 16:
        raise ConfigError(key, "", f"{path}: a token has at least 16 characters")
    return token
