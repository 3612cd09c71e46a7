# SPDX-License-Identifier: Apache-2.0
"""Show or change a tenant's quota while its programs run.

examples:
  gpulimit quota show team-a
  gpulimit quota set team-a --memory 8GiB --compute 50
  gpulimit quota set team-a --compute none                               # no limit on GPU time any more
  gpulimit quota set team-a --request 30 --weight 200 --priority high    # with the daemon
  gpulimit quota set team-a --reset        # with the daemon: remove this quota; the next source holds

Fields that are not given stay; `none` removes a field.  With the daemon, root and the daemon's group may set
a quota, also for a tenant without processes: it is kept for its next start.  A program's environment can only
lower it.  Without the daemon, the command changes the limits of a tenant with living programs in its usage
segment; they end with its last program.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from limiter import daemon_client, quota, segment
from limiter.errors import GpulimitError, UsageError
from limiter.live_quota import UNCHANGED_BYTES, LiveTenant, is_under_a_daemon
from limiter.units import show_bytes

PARTS = ("memory", "compute", "request", "weight", "priority", "memory_wait", "gang")
NONE = "none"
NOT_ALLOWED = 405
NEED_DAEMON = ("request", "weight", "priority", "memory_wait", "gang")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show|set")
    show = verbs.add_parser("show", help="print the quota in force and its source")
    change = verbs.add_parser("set", help="change a quota")
    for verb in (show, change):
        verb.add_argument("tenant", metavar="TENANT", help="the tenant's name")
        verb.add_argument("--json", action="store_true", help="print one JSON object")
    memory = "device memory: 4GiB, 50%%, a list as 0=4GiB,1=2GiB, or none"
    change.add_argument("--memory", metavar="Q", help=memory)
    change.add_argument("--compute", metavar="P", help="percent of a GPU's time, 1-100, a list, or none")
    change.add_argument("--request", metavar="P", help="guaranteed percent of a GPU's time")
    change.add_argument("--weight", metavar="N", help="share of GPU time against other tenants")
    change.add_argument("--priority", metavar="C", help="high, normal or low")
    wait = "longest time in seconds that an allocation waits for memory before it is refused"
    change.add_argument("--memory-wait", metavar="S", help=wait)
    change.add_argument("--gang", metavar="G", help="off, auto, or the name of a job of several tenants")
    change.add_argument("--reset", action="store_true", help="remove an earlier `set`")


def run(options: argparse.Namespace) -> int:
    if not segment.TENANT.fullmatch(options.tenant):
        raise UsageError(f"quota: {options.tenant!r} is not a tenant's name")
    answer = show(options.tenant) if options.verb == "show" else change(options)
    daemon_client.show_warnings(answer)
    print(json.dumps(answer) if options.json else describe(answer))
    return 0


def show(tenant: str) -> dict[str, Any]:
    """Return the quota in force."""
    try:
        return dict(daemon_client.ask("GET", f"/v1/tenants/{tenant}/quota"))
    except daemon_client.NoDaemon as error:
        daemon_client.raise_if_silent(error)
        return standalone(tenant, error)


def standalone(tenant: str, absence: daemon_client.NoDaemon) -> dict[str, Any]:
    """Return the limits in a tenant's usage segment."""
    try:
        usage = segment.read(tenant)
    except FileNotFoundError as error:
        raise GpulimitError(f"no tenant {tenant!r} here, and {absence}") from error
    except PermissionError as error:
        raise GpulimitError(f"tenant {tenant!r} belongs to another user, and {absence}") from error
    memory = {d.name: d.memory_limit_bytes for d in usage.devices if d.memory_limit_bytes < d.card_bytes}
    compute = {d.name: d.compute_limit_percent for d in usage.devices if d.compute_limit_percent < 100}
    said = {
        "memory": ",".join(f"{name}={limit}B" for name, limit in memory.items()),
        "compute": ",".join(f"{name}={percent}" for name, percent in compute.items()),
    }
    return {
        "tenant": tenant,
        "present": any(p.is_alive for p in usage.processes),
        "source": "environment",
        "quota": {part: text for part, text in said.items() if text},
    }


def change(options: argparse.Namespace) -> dict[str, Any]:
    """Change a quota; return the one that is then in force."""
    parts = {name: getattr(options, name) for name in PARTS if getattr(options, name) is not None}
    if options.reset and parts:
        raise UsageError("quota set: --reset goes alone")
    if not options.reset and not parts:
        raise UsageError("quota set: nothing to set; see `gpulimit quota set --help`")
    read_parts(parts)
    target = f"/v1/tenants/{options.tenant}/quota"
    changes = {name: None if value == NONE else value for name, value in parts.items()}
    try:
        if options.reset:
            return dict(daemon_client.ask("DELETE", target))
        return dict(daemon_client.ask("PATCH", target, changes))
    except daemon_client.NoDaemon as error:
        daemon_client.raise_if_silent(error)
        refuse_what_needs_the_daemon(options, parts, error)
        if is_under_a_daemon(options.tenant):
            raise GpulimitError(
                f"quota set: the limits of {options.tenant!r} are the daemon's, and {error}; start it first"
            ) from error
        set_in_books(options.tenant, parts, error)
        return standalone(options.tenant, error)
    except daemon_client.NodeRefused as error:
        if error.status == NOT_ALLOWED:
            raise GpulimitError(
                "quota set: the daemon is of an older version, which knows whole quotas only"
            ) from error
        raise


def read_parts(parts: dict[str, str]) -> quota.Quota:
    """Return the quota in the options, without removed fields. Raises QuotaError."""
    said = {name: value for name, value in parts.items() if value != NONE}
    return quota.read({f"GPULIMIT_{n.upper()}": v for n, v in said.items()}, flags=flags(said))


def flags(parts: dict[str, str]) -> dict[str, str]:
    return {f"GPULIMIT_{name.upper()}": flag_of(name) for name in parts}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def refuse_what_needs_the_daemon(
    options: argparse.Namespace, parts: dict[str, str], error: daemon_client.NoDaemon
) -> None:
    asked = ["--reset"] if options.reset else [flag_of(name) for name in NEED_DAEMON if name in parts]
    if asked:
        raise GpulimitError(f"quota set: {', '.join(asked)} needs the daemon, and {error}") from error


def set_in_books(tenant: str, parts: dict[str, str], absence: daemon_client.NoDaemon) -> None:
    """Set the limits of a tenant that the daemon does not know."""
    wanted = read_parts(parts)
    try:
        usage = segment.read(tenant)
        if not any(process.is_alive for process in usage.processes):
            raise GpulimitError(
                f"tenant {tenant!r} has no living process, and {absence}, to keep a quota for it"
            )
        check_sizes(wanted, usage.devices)
        with LiveTenant(tenant) as live:
            for device in usage.devices:
                memory = wanted.memory_bytes(device.card_bytes, uuid=device.name)
                if parts.get("memory") == NONE:
                    memory = device.card_bytes
                live.set(
                    device.entry,
                    memory_bytes=UNCHANGED_BYTES if memory is None else memory,
                    compute_percent=compute_for(device, wanted, parts),
                )
    except FileNotFoundError as error:
        raise GpulimitError(f"no tenant {tenant!r} here, and {absence}, to keep a quota for it") from error
    except PermissionError as error:
        raise GpulimitError(f"tenant {tenant!r} belongs to another user, and {absence}") from error


def compute_for(device: segment.Device, wanted: quota.Quota, parts: dict[str, str]) -> int:
    """Return the limit on a GPU's time to set; 0 to keep it."""
    if parts.get("compute") == NONE:
        return quota.NO_LIMIT_PERCENT
    return wanted.compute_percent(uuid=device.name) if wanted.compute else 0


def check_sizes(wanted: quota.Quota, devices: Sequence[segment.Device]) -> None:
    """Raise GpulimitError if a quota has more memory than a GPU of the tenant."""
    for rule in wanted.memory:
        here = [d for d in devices if rule.device == "*" or d.name.lower().startswith(rule.device.lower())]
        largest = max((device.card_bytes for device in here), default=0)
        if here and not rule.is_share and rule.amount > largest:
            there = ", ".join(f"{device.name} with {show_bytes(device.card_bytes)}" for device in here)
            raise GpulimitError(
                f"quota set: memory of {show_bytes(rule.amount)} is more than there is: {there}"
            )


def describe(answer: dict[str, Any]) -> str:
    """Return the answer as lines of text."""
    lines = [f"tenant    {answer['tenant']}"]
    if not answer["present"]:
        kept = (
            "its quota is kept for its next start"
            if answer["source"]
            else "nothing is kept for its next start"
        )
        lines[0] += f" (no process now; {kept})"
    lines.append(f"source    {answer['source'] or 'none'}")
    lines += [f"{name:<9} {readable(name, text)}" for name, text in answer["quota"].items()]
    if answer.get("gang_source", answer["source"]) != answer["source"]:
        lines.append(f"the gang is by {answer['gang_source']}")
    if not answer["quota"]:
        lines.append("no limits")
    if answer.get("suspended"):
        lines.append("suspended; `gpulimit tenant resume` lets it go")
    return "\n".join(lines)


def readable(name: str, text: str) -> str:
    """Return a list of amounts in readable form: 4 GiB instead of *=4294967296B."""
    if name not in ("memory", "compute"):
        return text
    entries = []
    for entry in text.split(","):
        device, _, amount = entry.rpartition("=")
        plain = amount.removesuffix("B")
        if name == "memory" and amount.endswith("B") and plain.isdecimal():
            amount = show_bytes(int(plain))
        elif name == "compute":
            amount = f"{amount}%"
        entries.append(amount if device in ("", "*") else f"{device}: {amount}")
    return ", ".join(entries)
