# SPDX-License-Identifier: Apache-2.0
"""How programs end."""

from __future__ import annotations

import sys
from collections.abc import Callable

from limiter.errors import GpulimitError


def run_program(name: str, start: Callable[[], None]) -> int:
    """Run to the end; return the exit status. What a person can put right is one line, not a traceback."""
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
