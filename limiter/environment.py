# SPDX-License-Identifier: Apache-2.0
"""Edits the environment of a program: preloads the library, selects the simulated driver and the GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

from limiter import paths


def preload(environment: MutableMapping[str, str]) -> None:
    """Preload libgpulimit.so, after libraries that are preloaded already.

    Another library that replaces driver calls would not be reached after it.
    """
    library = str(paths.library())
    environment["LD_PRELOAD"] = ":".join([*others_in(environment, "LD_PRELOAD", library), library])


def use_simulated_driver(environment: MutableMapping[str, str]) -> None:
    """Make the program use the simulated driver; the programs of one user share one simulated machine."""
    prepend(environment, "LD_LIBRARY_PATH", str(paths.simulated_driver()))
    environment.setdefault("GPULIMIT_SIM_STATE", f"/dev/shm/gpulimit-sim-{os.getuid()}")


def set_gpus(environment: MutableMapping[str, str], gpus: Sequence[str]) -> None:
    """Show the program only these GPUs."""
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # indexes are then those of nvidia-smi


def prepend(environment: MutableMapping[str, str], variable: str, path: str) -> None:
    """Put `path` first in a list of paths, and keep the other entries."""
    environment[variable] = ":".join([path, *others_in(environment, variable, path)])


def others_in(environment: Mapping[str, str], variable: str, path: str) -> list[str]:
    """Return the entries of a list of paths without `path`."""
    return [p for p in re.split("[ :]+", environment.get(variable, "")) if p and p != path]
