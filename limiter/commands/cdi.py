# SPDX-License-Identifier: Apache-2.0
"""Write a CDI specification, through which containers get cards under quota.

The command installs the library in --library-dir, from which containers mount it.  Each build has its own
file, so an upgrade disturbs no container.  Run the command again after an upgrade of gpulimit or of the
driver.  It also installs a hook, which merges an image's own /etc/ld.so.preload with gpulimit's.

examples:
  gpulimit cdi --output /etc/cdi/gpulimit.json
  docker run --device gpulimit.io/gpu=gpu0 -e GPULIMIT_MEMORY=4GiB IMAGE
  docker run --device nvidia.com/gpu=0 --device gpulimit.io/gpu=limits -e GPULIMIT_MEMORY=4GiB IMAGE
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from limiter import cards, cdi, container_edits, driver_files, environment, library_store, paths
from limiter.cards import Card
from limiter.container_edits import ContainerEdits
from limiter.errors import GpulimitError


class NotWritten(GpulimitError):
    """The specification cannot be made or written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", type=Path, help="file to write (standard output)")
    parser.add_argument(
        "--socket", metavar="PATH", default=paths.DAEMON_SOCKET, help="the daemon's socket (%(default)s)"
    )
    parser.add_argument(
        "--no-daemon",
        action="store_true",
        help="without a daemon: a container's environment sets its quota, and each is its own tenant",
    )
    parser.add_argument(
        "--library-dir",
        metavar="DIR",
        type=Path,
        default=Path("/var/lib/gpulimit/containers"),
        help="folder with the library for containers (%(default)s)",
    )
    parser.add_argument(
        "--no-cards", action="store_true", help="write only the device gpulimit.io/gpu=limits"
    )
    parser.add_argument("--sim", action="store_true", help="use the cards of the simulated driver")


def run(options: argparse.Namespace) -> int:
    variables = dict(os.environ)
    variables.pop("LD_PRELOAD", None)
    if options.sim:
        environment.use_simulated_driver(variables)
    found = [] if options.no_cards else cards.cards(variables)
    placed = library_store.place(paths.library(), options.library_dir.absolute(), options.socket)
    limits = container_edits.limits(
        library=str(placed.library),
        preload=str(placed.preload),
        daemon=str(placed.daemon),
        socket=options.socket,
    )
    if options.no_daemon:
        limits = ContainerEdits({"GPULIMIT_CDI": "1"}, limits.mounts[:2])
    try:
        handouts = simulated(found, variables) if options.sim else plain(found)
        hook = library_store.place_hook(paths.preload_hook(), options.library_dir.absolute())
        specification = cdi.specification(limits, found, handouts, hook=str(hook))
    except ValueError as error:
        raise NotWritten(str(error)) from error
    write(json.dumps(specification, indent=2) + "\n", options.output)
    return 0


def plain(found: Sequence[Card]) -> dict[str, ContainerEdits]:
    """Return the edits for each card by UUID, and for all cards. Raises ValueError."""
    if not found:
        return {}
    files = driver_files.libraries()
    if not files:
        raise ValueError("the driver's libraries are in none of the usual folders; use --no-cards")
    nodes = {}
    for card in found:
        if card.minor is None:
            raise ValueError(f"NVML does not say which device file {card.uuid} has; use --no-cards")
        nodes[card.uuid] = driver_files.card_node(card.minor)
    controls = driver_files.control_nodes()
    handouts = {uuid: container_edits.plain([node], files, controls) for uuid, node in nodes.items()}
    return handouts | {"all": container_edits.plain(nodes.values(), files, controls)}


def simulated(found: Sequence[Card], variables: Mapping[str, str]) -> dict[str, ContainerEdits]:
    kept = {k: v for k, v in variables.items() if k.startswith("GPULIMIT_SIM_")}

    def of(uuids: Sequence[str]) -> ContainerEdits:
        state = variables["GPULIMIT_SIM_STATE"]
        return container_edits.simulated(
            uuids, driver=str(paths.simulated_driver()), state=state, variables=kept
        )

    return {card.uuid: of([card.uuid]) for card in found} | {"all": of([card.uuid for card in found])}


def write(text: str, output: Path | None) -> None:
    """Write the specification atomically: runtimes watch the folder. Raises NotWritten."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # The name must not end in .json before the file is complete.
        handle, fresh = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(fresh).chmod(0o644)
        Path(fresh).rename(output)
    except OSError as error:
        raise NotWritten(f"{output}: {error.strerror}") from error
