# SPDX-License-Identifier: Apache-2.0
"""Suspend a tenant's launches, or resume them.

examples:
  gpulimit tenant suspend team-a
  gpulimit tenant resume team-a

Launches of a suspended tenant wait.  Work on the GPU runs to its end, and memory stays allocated.  With the
daemon, root and the daemon's group may suspend a tenant; the suspension also holds for programs that start
later and after a restart of the daemon.  Without the daemon, the owner of a tenant with living programs may.
"""

from __future__ import annotations

import argparse

from limiter import daemon_client, segment
from limiter.errors import GpulimitError, UsageError
from limiter.live_quota import LiveTenant, is_under_a_daemon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", choices=("suspend", "resume"), help="suspend the tenant, or resume it")
    parser.add_argument("tenant", metavar="NAME", help="the tenant's name")


def run(options: argparse.Namespace) -> int:
    if not segment.TENANT.fullmatch(options.tenant):
        raise UsageError(f"tenant: {options.tenant!r} is not a tenant's name")
    try:
        answer = daemon_client.ask("POST", f"/v1/tenants/{options.tenant}/{options.verb}")
        daemon_client.show_warnings(answer)
    except daemon_client.NoDaemon as error:
        daemon_client.raise_if_silent(error)
        if is_under_a_daemon(options.tenant):
            raise GpulimitError(
                f"tenant {options.verb}: {options.tenant!r} is under the daemon, and {error}; start it first"
            ) from error
        in_books(options.tenant, error, suspended=options.verb == "suspend")
    return 0


def in_books(tenant: str, absence: daemon_client.NoDaemon, *, suspended: bool) -> None:
    """Suspend or resume a tenant in its usage segment."""
    try:
        usage = segment.read(tenant)
        with LiveTenant(tenant) as live:
            for device in usage.devices:
                live.suspend(device.entry, suspended=suspended)
    except FileNotFoundError as error:
        raise GpulimitError(f"no tenant {tenant!r} here, and {absence}") from error
    except PermissionError as error:
        raise GpulimitError(f"tenant {tenant!r} belongs to another user, and {absence}") from error
