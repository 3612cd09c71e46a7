# SPDX-License-Identifier: Apache-2.0
"""Print the path of libgpulimit.so, for LD_PRELOAD.

examples:
  LD_PRELOAD=$(gpulimit lib) GPULIMIT_MEMORY=4GiB python train.py
  gpulimit lib --install /srv/gpulimit      # a folder for containers; again after an upgrade

--install never overwrites a library that a running program may have mapped: each build has its own file name
in the folder, and libgpulimit.so is a link that is switched in one step.  libgpupath.so lies beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from limiter import paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--install",
        type=Path,
        metavar="DIR",
        help="install the libraries in this folder, and print the library's path there",
    )


def run(options: argparse.Namespace) -> int:
    if options.install is None:
        print(paths.library())
        return 0
    from limiter import library_install

    print(library_install.publish(options.install.absolute()))
    return 0
