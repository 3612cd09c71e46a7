# SPDX-License-Identifier: Apache-2.0
"""Print the version; with --verbose, also the build and the environment."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

from limiter import about, paths
from limiter.errors import NotInstalled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also print libraries, layout, hooks, driver, Python and system",
    )
    parser.add_argument("--sim", action="store_true", help="with --verbose: use the simulated driver")


def run(options: argparse.Namespace) -> int:
    print(f"gpulimit {about.version()}")
    if options.verbose:
        rows = details(sim=options.sim)
        print("\n".join(f"{name:<15}{text}" for name, text in rows.items()))
    return 0


def details(*, sim: bool) -> dict[str, str]:
    """Return the details of --verbose by name."""
    from limiter._native import lib

    return {
        "library": build_of(paths.lib_dir() / paths.LIBRARY),
        "path library": build_of(paths.lib_dir() / "libgpupath.so"),
        "segment layout": str(lib.GL_LAYOUT_VERSION),
        "hooks": hooks(),
        "driver": driver(sim=sim),
        "cffi": about.version("cffi"),
        "Python": platform.python_version(),
        "system": platform.platform(),
    }


def build_of(library: Path) -> str:
    """Return a library's build id and path."""
    from limiter.build_id import build_id

    try:
        return f"{build_id(paths.existing(library))} {library}"
    except (NotInstalled, OSError) as error:
        return str(error)


def hooks() -> str:
    """Return the number of calls that the library replaces."""
    from limiter.doctor.probe import HOOK

    try:
        return f"{len(HOOK.findall(paths.hook_table().read_text(encoding='utf-8')))} calls taken over"
    except (NotInstalled, OSError) as error:
        return str(error)


def driver(*, sim: bool) -> str:
    """Return the driver that programs find here, or the reason that they find none; uses a child process."""
    from limiter import environment
    from limiter.doctor import driver as found

    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if sim:
        environment.use_simulated_driver(variables)
    return next(found.driver(found.probe("driver", variables))).text
