# SPDX-License-Identifier: Apache-2.0
"""Print the path of libgpulimit.so, for LD_PRELOAD.

Example:
  LD_PRELOAD=$(gpulimit lib) GPULIMIT_MEMORY=4GiB python train.py

"""

from __future__ import annotations

import argparse

from limiter import paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # no options


def run(options: argparse.Namespace) -> int:
    del options
    print(paths.library())
    return 0
