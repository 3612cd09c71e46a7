# SPDX-License-Identifier: Apache-2.0
"""Runs a program and turns its errors into an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable

from limiter.errors import GpulimitError


def run_program(name: str, start: Callable[[], None]) -> int:
    """Run a program; return its exit status. A user-fixable error prints one line, not a traceback."""
    try:
        start()
    except GpulimitError as error:
        print(f"gpulimit {name}: {error}", file=sys.stderr)
        return error.exit_status
    except BaseExceptionGroup as group:
        known, unknown = group.split(GpulimitError)
        if unknown is not None:
            raise unknown from None
        assert known is not None
        print(f"gpulimit {name}: {known.exceptions[0]}", file=sys.stderr)
        return 2
    return 0
