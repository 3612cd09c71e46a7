# SPDX-License-Identifier: Apache-2.0
"""Print the version; with --verbose, what it was built with and what it finds here."""

from __future__ import annotations

import argparse
import platform

from limiter import about, paths
from limiter.errors import NotInstalled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="also layout, library, Python and system")


def run(options: argparse.Namespace) -> int:
    print(f"gpulimit {about.version()}")
    if options.verbose:
        print("\n".join(details()))
    return 0


def details() -> list[str]:
    """Return the lines of --verbose."""
    from limiter._native import lib

    try:
        library = str(paths.library())
    except NotInstalled as error:
        library = str(error)
    return [
        f"library        {library}",
        f"segment layout {lib.GL_LAYOUT_VERSION}",
        f"cffi           {about.version('cffi')}",
        f"Python         {platform.python_version()}",
        f"system         {platform.platform()}",
    ]
