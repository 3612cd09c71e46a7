# SPDX-License-Identifier: Apache-2.0
"""Show the tenants of this machine: memory and GPU time, used and allowed.

examples:
  gpulimit status
  gpulimit status --json | jq '.tenants[] | {tenant, memory_used_bytes}'

SHARE is the part of the GPU's time that the tenant got during the last second.  LAUNCHES counts the launches
of living processes; --json separates kernels, graphs, cooperative launches and launches recorded into graphs.
With the daemon, SOURCE is the source of the quota (pod, api, config, slices, default or environment), and NOW
is the tenant's activity: it runs, waits for GPU time, is idle or suspended.
A gang is one tenant or several whose processes wait for each other over GPUs: they get GPU time together.
Only root sees the tenants of other users.  A tenant is shown while one of its processes lives; --all also
shows tenants that have ended.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from limiter import daemon_absence, daemon_client, daemon_status, tenant_status, tenants
from limiter.daemon_status import NodeRow, gpu_lines, join, node_data, node_table
from limiter.tenant_status import HEADINGS, StatusRow, as_data, cells, rows, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also tenants with no living process")
    parser.add_argument(
        "--over", type=float, default=1.0, metavar="S", help="seconds over which shares are measured (1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    before = tenants.snapshot()
    if before.usages:
        time.sleep(max(0.0, options.over))
    after = tenants.snapshot()
    shown = [row for row in rows(before, after) if row.processes or options.all]
    state, absence = ask_daemon()
    known = None if state is None else join(shown, state)
    if options.json:
        unreadable = {"unreadable": after.unreadable, "daemon_absence": absence}
        print(json.dumps(data_of(shown, known, state) | unreadable))
    else:
        gangs = tenant_status.gang_lines(shown) if state is None else daemon_status.gang_lines(state)
        about = [*gangs, *(absence or about_daemon(state or {}))]
        print("\n".join([*describe(shown, known, after.unreadable), *about]))
    return 0


def ask_daemon() -> tuple[dict[str, Any] | None, list[str]]:
    """Return the daemon's answer, or lines about its absence."""
    try:
        answer = daemon_client.ask("GET", "/v1/state")
    except daemon_client.NoDaemon as error:
        return None, daemon_absence.lines_about(error)
    return (answer, []) if isinstance(answer, dict) else ({}, [])


def data_of(
    shown: list[StatusRow], known: list[NodeRow] | None, state: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the JSON answer."""
    if known is None or state is None:
        return {"daemon": False, "tenants": [as_data(row) for row in shown]}
    return {"daemon": True, "tenants": [node_data(row) for row in known], "node": state}


def coarse_line(row: StatusRow) -> str:
    """Return the line about a tenant whose GPU time cannot be measured exactly."""
    return (
        f"degraded: {row.tenant} on {row.gpu}: the driver refuses timing events, so GPU time is counted by "
        "the wall clock, which is more than was used; limits hold"
    )


def describe(shown: list[StatusRow], known: list[NodeRow] | None, unreadable: dict[str, str]) -> list[str]:
    """Return the table of tenants."""
    headings, lines = (HEADINGS, [cells(row) for row in shown]) if known is None else node_table(known)
    text = [table(headings, lines) if lines else "no tenants"]
    text += [f"cannot read {tenant}: {why}" for tenant, why in unreadable.items()]
    text += [coarse_line(row) for row in shown if row.is_coarse]
    return text


def about_daemon(state: dict[str, Any]) -> list[str]:
    """Return lines about the daemon that answers."""
    daemon = state.get("daemon", {})
    not_ready = daemon.get("not_ready", ())
    return [
        *gpu_lines(state),
        *(f"daemon: running, not ready: {why}" for why in not_ready),
        *([] if not_ready else ["daemon: running"]),
        *(f"daemon: {warning}" for warning in daemon.get("warnings", ())),
    ]
