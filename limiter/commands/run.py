# SPDX-License-Identifier: Apache-2.0
"""Run a program under a memory and compute quota; the exit status is the program's.

examples:
  gpulimit run --memory 4GiB -- python train.py
  gpulimit run --memory 50% --compute 30 -- python train.py
  gpulimit run --gpu 1 --memory 8GiB --tenant team-a -- ./serve     # all runs of team-a share the 8 GiB
  gpulimit run --memory 0=4GiB,1=2GiB -- python train.py            # a quota per GPU
  gpulimit run --sim --memory 1GiB --report -- gpulimit load        # on the simulated driver
  docker run $(gpulimit run --container --memory 4GiB --image IMAGE) IMAGE python train.py

Without --tenant, each run is its own tenant, which includes its child processes.  An invalid quota ends the
command with exit status 2 before the program starts.  Preloading is cooperative: a program that is statically
linked or setuid, or that clears LD_PRELOAD, is not limited.  `--report` tells whether the program came under
quota.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from limiter import child, daemon_client, environment, gpu_choice, quota, tenants
from limiter.errors import UsageError
from limiter.quota import GangMode

# Option, variable, metavar, help.
QUOTA_OPTIONS = (
    ("memory", "GPULIMIT_MEMORY", "Q", "device memory: 4GiB, 50%%, or a list as 0=4GiB,GPU-34ab=2GiB"),
    ("compute", "GPULIMIT_COMPUTE", "P", "percent of a GPU's time, 1-100, or a list as 0=30,1=50"),
    ("request", "GPULIMIT_REQUEST", "P", "guaranteed percent of a GPU's time (with a daemon)"),
    ("weight", "GPULIMIT_WEIGHT", "N", "share of GPU time against other tenants (with a daemon)"),
    ("priority", "GPULIMIT_PRIORITY", "C", "high, normal or low (with a daemon)"),
    (
        "memory-wait",
        "GPULIMIT_MEMORY_WAIT",
        "S",
        "longest time in seconds that an allocation waits for memory before it is refused",
    ),
    (
        "gang",
        "GPULIMIT_GANG",
        "G",
        "off, auto, or the name of a job: its processes wait for each other, so they get GPU time together",
    ),
    (
        "tenant",
        "GPULIMIT_TENANT",
        "NAME",
        "name of the tenant; runs with the same name share its quota",
    ),
)

DRIVER_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""The driver's device files on servers and desktops, in WSL, on Jetson. One of them exists if a driver is
loaded."""

# Flag, and its keyword arguments for argparse.
CONTAINER_OPTIONS: dict[str, dict[str, Any]] = {
    "--engine": {"choices": ("docker", "podman"), "help": "with --container: the engine (docker)"},
    "--image": {"metavar": "IMAGE", "help": "with --container: keep this image's own preloaded libraries"},
    "--preload-file": {
        "action": "store_true",
        "help": "with --container: use /etc/ld.so.preload instead of LD_PRELOAD (glibc images only)",
    },
    "--device": {
        "action": "append",
        "metavar": "CDI",
        "help": "with --container: give the container this CDI device instead of --gpu",
    },
    "--lib-dir": {
        "type": Path,
        "metavar": "DIR",
        "help": "with --container: folder with the container's libraries (/var/lib/gpulimit/lib)",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, variable, metavar, text in QUOTA_OPTIONS:
        parser.add_argument(f"--{name}", metavar=metavar, help=f"{text} [{variable}]")
    parser.add_argument("--gpu", action="append", default=[], metavar="IDX|UUID", help="use only this GPU")
    parser.add_argument("--sim", action="store_true", help="use the simulated driver")
    parser.add_argument(
        "--report", action="store_true", help="at the end, print the run's memory and GPU time on stderr"
    )
    parser.add_argument(
        "--container", action="store_true", help="start nothing; print the arguments for a container engine"
    )
    for flag, settings in CONTAINER_OPTIONS.items():
        parser.add_argument(flag, **settings)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the program")


def run(options: argparse.Namespace) -> int:
    if options.container:
        return print_arguments(options)
    refuse_without_container(options)
    command = program_of(options.command)
    variables = dict(os.environ)
    own_tenant = set_quota(variables, options)
    environment.set_gpus(variables, options.gpu)
    if options.sim:
        environment.use_simulated_driver(variables)
    gpu_choice.check(options.gpu, variables)
    environment.preload(variables)
    note_what_needs_the_daemon(options)
    note_what_is_not_limited(variables, own_tenant=own_tenant)
    if not options.sim:
        note_missing_driver()
    return supervise(command, variables, report=options.report, own_tenant=own_tenant)


def refuse_without_container(options: argparse.Namespace) -> None:
    """Raise UsageError if an option was given that needs --container."""
    for flag in CONTAINER_OPTIONS:
        if getattr(options, flag.removeprefix("--").replace("-", "_")):
            raise UsageError(f"run: {flag} goes with --container")


def print_arguments(options: argparse.Namespace) -> int:
    """Print the arguments that start a container under the quota, one per line."""
    from limiter import container, image, library_install

    if options.command or options.report:
        raise UsageError("run --container only prints arguments: no program, no --report with it")
    variables = dict(os.environ)
    if set_quota(variables, options):
        del variables["GPULIMIT_TENANT"]
    gpu_choice.check(options.gpu, variables)
    engine = options.engine or image.ENGINES[0]
    wish = container.Wish(
        engine=engine,
        shelf=(options.lib_dir or library_install.default_folder()).absolute(),
        gpus=options.gpu,
        devices=options.device or (),
        by_file=options.preload_file,
        is_simulated=options.sim,
    )
    facts = image.Image()
    if options.image:
        facts = image.ask(engine, options.image, with_file=options.preload_file)
    else:
        hides = "/etc/ld.so.preload" if options.preload_file else "LD_PRELOAD"
        print(f"gpulimit: without --image, {hides} of the image, if it has one, is hidden", file=sys.stderr)
    library_install.publish(wish.shelf)
    print("\n".join(container.arguments(wish, variables, facts)))
    return 0


def program_of(words: Sequence[str]) -> list[str]:
    """Return the program and its arguments.  Raises UsageError if there is none."""
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise UsageError("run: no program given, as in `gpulimit run --memory 4GiB -- python train.py`")
    return command


def set_quota(variables: MutableMapping[str, str], options: argparse.Namespace) -> bool:
    """Write the options to the environment and check all of it; return True if the tenant's name was
    generated.

    Raises QuotaError, which names the option or the inherited variable.
    """
    flags: dict[str, str] = {}
    for name, variable, _, _ in QUOTA_OPTIONS:
        value = getattr(options, name.replace("-", "_"))
        if value is not None:
            variables[variable] = value
            flags[variable] = f"--{name}"
    own_tenant = not variables.get("GPULIMIT_TENANT")
    if own_tenant:
        variables["GPULIMIT_TENANT"] = tenants.made_up_name()
    quota.read(variables, flags=flags)
    return own_tenant


def note_what_needs_the_daemon(options: argparse.Namespace) -> None:
    """Print a note if an option was given that only a daemon acts on."""
    given = [f"--{name}" for name in ("request", "weight", "priority") if getattr(options, name) is not None]
    gang = quota.read({"GPULIMIT_GANG": options.gang}).gang_mode if options.gang else GangMode.AUTO
    if not (given or gang == GangMode.NAMED) or daemon_client.answers():
        return
    if given:
        print(f"gpulimit: no daemon here, so {', '.join(given)} has no effect; limits hold", file=sys.stderr)
    if gang == GangMode.NAMED:
        text = f"no daemon here, so --gang {options.gang} joins this tenant with no other"
        print(f"gpulimit: {text}", file=sys.stderr)


def note_what_is_not_limited(variables: Mapping[str, str], *, own_tenant: bool) -> None:
    """Print a note if neither the options, the environment nor a daemon set a quota."""
    said = quota.read(variables)
    if own_tenant and not said.has_limits and not daemon_client.may_be_there():
        print(
            "gpulimit: no quota is given, so the program is not limited; see --memory and --compute",
            file=sys.stderr,
        )


def note_missing_driver() -> None:
    """Print a note if there is no CUDA driver: the program then finds no GPU."""
    if any(Path(node).exists() for node in DRIVER_NODES):
        return
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        print(
            "gpulimit: no CUDA driver is found here (libcuda.so.1), so no GPU can be used; --sim uses the "
            "simulated one",
            file=sys.stderr,
        )


def supervise(command: Sequence[str], variables: dict[str, str], *, report: bool, own_tenant: bool) -> int:
    """Run the program, report its usage if asked, and remove the tenant if this run generated its name."""
    from limiter.run_report import TICK_MS, Watcher

    tenant = variables["GPULIMIT_TENANT"]
    watcher = Watcher(tenant) if report else None
    try:
        return child.run(command, variables, tick=watcher.look if watcher else None, tick_s=TICK_MS / 1000)
    finally:
        if watcher:
            print(watcher.describe(), file=sys.stderr)
        if own_tenant:
            tenants.remove_if_unused(tenant)
        tenants.remove_abandoned()
