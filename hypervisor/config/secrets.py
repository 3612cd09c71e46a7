# SPDX-License-Identifier: Apache-2.0
"""Reads the tokens for requests from files."""

from __future__ import annotations

import re
from pathlib import Path

from limiter._native import lib

from hypervisor.errors import ConfigError

MIN_TOKEN, MAX_PROCESS_TOKEN = int(lib.GL_MIN_TOKEN_BYTES), int(lib.GL_MAX_TOKEN_BYTES)
VISIBLE = re.compile("[!-~]+")


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
    if len(token) < MIN_TOKEN:
        raise ConfigError(key, "", f"{path}: a token has at least {MIN_TOKEN} characters")
    return token


def read_process_token(path: str, key: str) -> str:
    """Return a token that the library can send. Raises ConfigError, which names `key`."""
    token = read_token(path, key)
    if len(token) > MAX_PROCESS_TOKEN or not VISIBLE.fullmatch(token):
        reason = f"processes can show a token of {MIN_TOKEN} to {MAX_PROCESS_TOKEN} visible ASCII characters"
        raise ConfigError(key, "", f"{path}: {reason}")
    return token
