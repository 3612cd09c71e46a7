# SPDX-License-Identifier: Apache-2.0
"""What is shipped for Prometheus and Grafana, on a real server that scrapes a daemon with three tenants."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, needs_program
from tests.metrics.conftest import RULES

pytestmark = [needs_program("prometheus", "promtool"), pytest.mark.timeout(120)]
DASHBOARD = ROOT / "deploy" / "grafana" / "gpulimit.json"
OF_CLUSTERS = {"GpulimitPodQuotaInvalid", "GpulimitClusterNotWatched"}
"""Alerts about what only a cluster has; promtool tests them."""
VARIABLES = {
    "$gpu": ".*",
    "$instance": ".*",
    "$tenant": ".*",
    "$namespace": ".*",
    "$__rate_interval": "5s",
    "[5m]": "[5s]",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml", "recording.yml", "parts.yml"),
        ("check", "config", "scrape.yml"),
        ("test", "rules", "rules_test.yml"),
        ("test", "rules", "parts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(arguments) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=RULES, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def queries(dashboard: Path = DASHBOARD) -> list[tuple[str, str]]:
    """Return a dashboard's queries, (panel, expression), for one whole node."""
    board = json.loads(dashboard.read_text())
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append((panel["title"], expression))
    return found


def test_every_panel_asks_something() -> None:
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["type"] == "row" or panel["targets"] for panel in board["panels"])
    assert not [e for _, e in queries() if "$" in e]


def test_rules_load_and_every_query_of_the_dashboard_returns_data(
    node, prometheus, work, tenant, xid
) -> None:
    served = node()
    work("-a", "--seconds", "60", "--memory", "300MiB", memory="4GiB", compute=50)
    work("-b", "--seconds", "60", "--memory", "100MiB", memory="2GiB", weight=300)
    work("-c", "--seconds", "60", "--memory", "10MiB", request=20)
    served.until(lambda s: s.one("workers") == 3)
    server = prometheus(served)
    xid(0, 31)
    groups = server.ask("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(re.findall(r"- (?:alert|record):", all_rules()))
    missing = dict.fromkeys(queries())
    served.until(lambda _: not still_missing(server, missing), within_s=40)
    recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
    wanted = [("recorded", name) for name in recorded if not name.startswith("vmi_")]
    served.until(lambda _: not still_missing(server, dict.fromkeys(wanted)), within_s=20)
    assert not [r for r in server.ask("/api/v1/rules")["groups"] for r in r["rules"] if r["health"] == "err"]


def all_rules() -> str:
    return "".join((RULES / name).read_text() for name in ("alerts.yml", "recording.yml"))


def still_missing(server: Any, wanted: dict[tuple[str, str], None]) -> list[tuple[str, str]]:
    """Forget what returns data now; return the rest."""
    for title, expression in list(wanted):
        if server.query(expression):
            del wanted[title, expression]
    return list(wanted)


def test_every_alert_fires_for_its_fault_and_stops_after_it(
    node, prometheus, work, tenant, xid, daemon
) -> None:
    served = node(env={"GPULIMIT_SIM_SET": "memory=8GiB"})
    operator = served.daemon.ask
    one = f"{tenant}-a"
    work("-a", "--seconds", "110", "--memory", "500MiB", memory="4GiB", compute=30)
    served.until(lambda s: s.one("client_managed_allocated_bytes", tenant=one))
    server = prometheus(served)
    tested = set()

    def fires(name: str) -> None:
        server.until_firing(name)
        tested.add(name)

    fires("GpulimitThrottled")
    quota = {"memory": "600MiB", "compute": 100}
    assert operator("PUT", f"/v1/tenants/{one}/quota", quota)[0] == 200
    fires("GpulimitMemoryQuotaExceeded")
    assert operator("PUT", f"/v1/tenants/{one}/quota", {"memory": "4GiB"})[0] == 200
    server.until_quiet("GpulimitMemoryQuotaExceeded")
    server.until_quiet("GpulimitThrottled")

    assert operator("POST", f"/v1/tenants/{one}/suspend")[0] == 204
    fires("GpulimitQueueBesideIdleGpu")
    assert operator("POST", f"/v1/tenants/{one}/resume")[0] == 204
    server.until_quiet("GpulimitQueueBesideIdleGpu")

    stranger = work("-a", "--seconds", "60", "--idle", "--memory", "5500MiB", is_limited=False)
    fires("GpulimitUnregisteredGpuProcess")
    fires("GpulimitEnforcementOff")
    fires("GpulimitGpuMemoryNearlyFull")
    stranger.kill()
    for name in ("UnregisteredGpuProcess", "EnforcementOff", "GpuMemoryNearlyFull"):
        server.until_quiet(f"Gpulimit{name}")

    xid(0, 79)
    fires("GpulimitGpuLost")
    fires("GpulimitGpuNeedsReset")
    xid(0, 0)
    server.until_quiet("GpulimitGpuLost")
    server.until_quiet("GpulimitGpuNeedsReset")

    served.daemon.stop()
    fires("GpulimitDaemonDown")
    daemon(
        is_awaited=False,
        nvml_interval="250ms",
        env={
            "GPULIMIT_SIM_SET": "memory=8GiB",
            "GPULIMIT_SIM_FAULTS": "nvmlDeviceGetTemperature:hang:after=2",
        },
    )
    server.until_quiet("GpulimitDaemonDown")
    fires("GpulimitSamplerStale")
    server.until_quiet("GpulimitSamplerStale")
    assert tested == set(re.findall(r"alert: (\w+)", all_rules())) - OF_CLUSTERS
