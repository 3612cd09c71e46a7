# SPDX-License-Identifier: Apache-2.0
"""Logging, set up in one place: lines for people or JSON objects, on stderr."""

from __future__ import annotations

import json
import logging
import sys


class JsonLines(logging.Formatter):
    """One JSON object a line; `extra` fields of the record are kept."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class DropBadHttp(logging.Filter):
    """Drops what a client that talks no HTTP would have logged: anybody could fill the disk with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return type(error).__module__ != "aiohttp.http_exceptions"


def set_up(*, form: str, level: str) -> None:
    """Send this package's records to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("hypervisor").setLevel(level.upper())
    logging.getLogger("aiohttp.server").addFilter(DropBadHttp())
