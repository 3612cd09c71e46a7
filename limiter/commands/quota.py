# SPDX-License-Identifier: Apache-2.0
"""Show or change a tenant's quota while its programs run.

examples:
  gpulimit quota show team-a
  gpulimit quota set team-a --memory 8GiB --compute 50
  gpulimit quota set team-a --request 30 --weight 200 --priority high    # with the daemon
  gpulimit quota set team-a --reset        # with the daemon: back to what holds otherwise

With the daemon, `set` states the whole quota, also for a tenant that is not there yet, and what a program's
environment says can only lower it; root and the daemon's group may do that.  Without it, the limits of a
tenant with living programs are changed in its books, those that are not given stay, and they end with its
last program.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from limiter import daemon_client, quota, segment
from limiter.errors import GpulimitError, UsageError
from limiter.live_quota import LiveTenant
from limiter.units import show_bytes

PARTS = ("memory", "compute", "request", "weight", "priority", "memory_wait")
NEED_DAEMON = ("request", "weight", "priority", "memory_wait")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show|set")
    show = verbs.add_parser("show", help="print the quota in force and who said it")
    change = verbs.add_parser("set", help="change it")
    for verb in (show, change):
        verb.add_argument("tenant", metavar="TENANT")
        verb.add_argument("--json", action="store_true", help="print one JSON object")
    change.add_argument("--memory", metavar="Q", help="device memory: 4GiB, 50%%, or a list as 0=4GiB,1=2GiB")
    change.add_argument("--compute", metavar="P", help="percent of a GPU's time, 1-100, or a list")
    change.add_argument("--request", metavar="P", help="percent of a GPU's time that is guaranteed")
    change.add_argument("--weight", metavar="N", help="share of spare GPU time against other tenants")
    change.add_argument("--priority", metavar="C", help="high, normal or low")
    wait = "seconds that an allocation may wait for memory before it is refused"
    change.add_argument("--memory-wait", metavar="S", help=wait)
    change.add_argument("--reset", action="store_true", help="take an earlier `set` back")


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
    except daemon_client.NoDaemon:
        return standalone(tenant)


def standalone(tenant: str) -> dict[str, Any]:
    """Return the limits in a tenant's books."""
    try:
        usage = segment.read(tenant)
    except FileNotFoundError as error:
        raise GpulimitError(f"no tenant {tenant!r} here, and no daemon") from error
    except PermissionError as error:
        raise GpulimitError(f"tenant {tenant!r} belongs to another user, and there is no daemon") from error
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
    """Change it; return what then holds."""
    parts = {name: getattr(options, name) for name in PARTS if getattr(options, name) is not None}
    if options.reset and parts:
        raise UsageError("quota set: --reset goes alone")
    if not options.reset and not parts:
        raise UsageError("quota set: nothing to set; see `gpulimit quota set --help`")
    quota.read({f"GPULIMIT_{n.upper()}": v for n, v in parts.items()}, flags=flags(parts))
    target = f"/v1/tenants/{options.tenant}/quota"
    try:
        if options.reset:
            return dict(daemon_client.ask("DELETE", target))
        return dict(daemon_client.ask("PUT", target, parts))
    except daemon_client.NoDaemon as error:
        refuse_what_needs_the_daemon(options, parts, error)
    set_in_books(options.tenant, parts)
    return standalone(options.tenant)


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


def set_in_books(tenant: str, parts: dict[str, str]) -> None:
    """Set the limits of a tenant that the daemon does not know."""
    wanted = quota.read({f"GPULIMIT_{n.upper()}": v for n, v in parts.items()}, flags=flags(parts))
    try:
        usage = segment.read(tenant)
        with LiveTenant(tenant) as live:
            for device in usage.devices:
                uuid = device.name
                memory = wanted.memory_bytes(device.card_bytes, uuid=uuid)
                compute = wanted.compute_percent(uuid=uuid) if wanted.compute else 0
                if memory is None:
                    live.set(device.entry, compute_percent=compute)
                else:
                    live.set(device.entry, memory_bytes=memory, compute_percent=compute)
    except FileNotFoundError as error:
        raise GpulimitError(f"no tenant {tenant!r} here, and no daemon to keep a quota for it") from error
    except PermissionError as error:
        raise GpulimitError(f"tenant {tenant!r} belongs to another user, and there is no daemon") from error


def describe(answer: dict[str, Any]) -> str:
    """Return the answer for people."""
    lines = [f"tenant    {answer['tenant']}{'' if answer['present'] else ' (no process now)'}"]
    lines.append(f"source    {answer['source'] or 'nobody'}")
    lines += [f"{name:<9} {readable(name, text)}" for name, text in answer["quota"].items()]
    if not answer["quota"]:
        lines.append("no limits")
    return "\n".join(lines)


def readable(name: str, text: str) -> str:
    """Return a list of amounts as people write it: 4 GiB instead of *=4294967296B."""
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
