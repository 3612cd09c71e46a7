# SPDX-License-Identifier: Apache-2.0
"""Sets up logging: text lines or JSON objects, on stderr.

Users cannot flood the log. Each cause writes a few lines and then one per minute, and all causes together
write at most a number of bytes per hour. Lines that were left out are counted and reported.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

HOUR_S = 3600.0
MINUTE_S = 60.0
LINES_AT_ONCE = {False: 30, True: 3}
"""Lines of one cause before the bound of one per minute applies; True for warnings and errors."""
MAX_CAUSES = 512
USER_FRACTION = 4
"""One user's calls write at most one in four of all bytes."""
OWN_FRACTION = 8
"""One byte in eight is reserved for lines that no user's call has caused."""
MAX_TRACEBACK_CHARS = 4000
DEFAULT_LIMIT = 1 << 20
Cause = tuple[str, int, str, str, str]
account_in_log: ContextVar[str] = ContextVar("account_in_log", default="")
"""Account of the call that is being answered."""


class JsonLines(logging.Formatter):
    """One JSON object per line; `extra` fields of the record are kept."""

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
    """Drops aiohttp's log records about clients that send no HTTP, or hang up early."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return type(error).__module__ != "aiohttp.http_exceptions" and not isinstance(error, ConnectionError)


@dataclass(slots=True)
class Bucket:
    """An allowance that fills with time."""

    left: float
    at_s: float

    def fill(self, now_s: float, *, most: float, per_s: float) -> float:
        """Refill the allowance; return its current amount."""
        self.left = min(most, self.left + (now_s - self.at_s) * per_s)
        self.at_s = now_s
        return self.left


class LogLimit(logging.Filter):
    """Passes at most `bytes_per_hour`, by an estimate of each line's length; debug lines are not counted.

    Any thread.
    """

    def __init__(self, bytes_per_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = bytes_per_hour / 2  # a full allowance plus an hour's refill make the whole
        self._clock = clock
        self._lock = threading.Lock()
        now_s = clock()
        self._total = Bucket(self._most, now_s)
        self._users: dict[str, Bucket] = {}
        self._causes: dict[Cause, Bucket] = {}
        self._left_out: Counter[Cause] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        with self._lock:
            return self._may_pass(record, self._clock())

    def _may_pass(self, record: logging.LogRecord, now_s: float) -> bool:
        cause = cause_of(record)
        if len(self._causes) >= MAX_CAUSES and cause not in self._causes:
            self._drop_full(now_s)
        lines = lines_at_once(record.levelno)
        bucket = self._causes.setdefault(cause, Bucket(lines, now_s))
        user = account_in_log.get()
        size = size_of(record)
        is_too_often = bucket.fill(now_s, most=lines, per_s=1 / MINUTE_S) < 1
        if is_too_often or not self._pay(user, size, now_s):
            self._left_out[cause] += 1
            return False
        bucket.left -= 1
        left_out = self._left_out.pop(cause, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like this left out)", ()
        return True

    def _pay(self, user: str, size: int, now_s: float) -> bool:
        """Take a line's bytes from all its allowances; return False if one is used up."""
        total = self._total.fill(now_s, most=self._most, per_s=self._most / HOUR_S)
        if not user:
            if total < size:
                return False
            self._total.left -= size
            return True
        most = self._most / USER_FRACTION
        if len(self._users) >= MAX_CAUSES and user not in self._users:
            self._users.clear()
        own = self._users.setdefault(user, Bucket(most, now_s))
        if own.fill(now_s, most=most, per_s=most / HOUR_S) < size or total - size < self._most / OWN_FRACTION:
            return False
        own.left -= size
        self._total.left -= size
        return True

    def _drop_full(self, now_s: float) -> None:
        """Forget causes that did not occur recently, or all: tenants can invent any number."""
        for cause, bucket in list(self._causes.items()):
            lines = lines_at_once(cause[1])
            if bucket.fill(now_s, most=lines, per_s=1 / MINUTE_S) >= lines:
                del self._causes[cause]
                self._left_out.pop(cause, None)
        if len(self._causes) >= MAX_CAUSES:
            self._causes.clear()
            self._left_out.clear()


def lines_at_once(level: int) -> int:
    return LINES_AT_ONCE[level >= logging.WARNING]


def cause_of(record: logging.LogRecord) -> Cause:
    """Return the cause that similar lines share: logging place, kind of error, and first argument.

    An event's first argument is its kind.
    """
    error = type(record.exc_info[1]).__name__ if record.exc_info else ""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
    return record.name, record.levelno, str(record.msg), error, str(first)[:64]


def size_of(record: logging.LogRecord) -> int:
    """Return the estimated bytes of a line; a traceback counts as the longest one."""
    return 100 + len(record.getMessage()) + (MAX_TRACEBACK_CHARS if record.exc_info else 0)


def set_up(*, form: str, level: str, bytes_per_hour: int = DEFAULT_LIMIT) -> None:
    """Send this package's records to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    handler.addFilter(LogLimit(bytes_per_hour))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("hypervisor").setLevel(level.upper())
    for name in ("aiohttp.server", "asyncio"):
        logging.getLogger(name).addFilter(DropBadHttp())
