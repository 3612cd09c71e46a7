# SPDX-License-Identifier: Apache-2.0
"""Show the tenants of this machine: memory and GPU time, used and allowed.

examples:
  gpulimit status
  gpulimit status --json | jq '.tenants[] | {tenant, memory_used_bytes}'

SHARE is the part of the GPU that the tenant got during the last second.  LAUNCHES counts those of living
processes, of all kinds; --json tells kernels, graphs, cooperative ones and those recorded into graphs apart.
Another user's tenants are shown to root only.  A tenant is shown while one of its processes lives; --all
shows what the others left, too.
"""

from __future__ import annotations

import argparse
import json
import time

from limiter import daemon, tenants
from limiter.tenant_view import HEADINGS, Row, as_data, cells, rows, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also tenants with no living process")
    parser.add_argument("--over", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    before = tenants.snapshot()
    if before.usages:
        time.sleep(max(0.0, options.over))
    after = tenants.snapshot()
    shown = [row for row in rows(before, after) if row.processes or options.all]
    has_daemon = daemon.answers()
    if options.json:
        answer = {
            "daemon": has_daemon,
            "tenants": [as_data(row) for row in shown],
            "unreadable": after.unreadable,
        }
        print(json.dumps(answer))
    else:
        print(describe(shown, after.unreadable, has_daemon))
    return 0


def describe(shown: list[Row], unreadable: dict[str, str], has_daemon: bool) -> str:
    """Return the answer for people."""
    lines = [table(HEADINGS, [cells(row) for row in shown]) if shown else "no tenants"]
    lines += [f"cannot read {tenant}: {why}" for tenant, why in unreadable.items()]
    lines.append(
        "daemon: running" if has_daemon else "daemon: none; quotas come from each program's environment"
    )
    return "\n".join(lines)
